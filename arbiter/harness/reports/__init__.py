"""Reports: the results of a run, and the forms in which they are written."""
