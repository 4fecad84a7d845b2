"""Things that every room may use: batches, tasks, data sets, metrics, names, plug-ins, files that are never half written."""
