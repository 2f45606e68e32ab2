"""From run folders to tables, figures and a page: what `cleanba report` is made of."""
