"""`cleanba report`: from run folders to tables, figures and a page."""
