"""Records → tables, figures, one page. Nothing here imports torch: a report is made again anywhere."""
