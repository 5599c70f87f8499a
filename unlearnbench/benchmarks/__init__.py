"""The benchmarks: rows, splits and the metric suite of each."""
