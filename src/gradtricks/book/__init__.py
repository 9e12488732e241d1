"""The book's pages, from what runs recorded."""
