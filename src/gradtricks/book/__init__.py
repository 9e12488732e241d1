"""The book: what its pages are made of, and what makes them. The lab runs the notebooks."""
