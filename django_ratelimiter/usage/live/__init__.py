"""What Redis holds of the last day or week: recent rejections, and the names of callers."""
