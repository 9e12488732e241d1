"""What the commands do, without a terminal and with one."""
