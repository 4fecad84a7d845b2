"""What every room may use and no room owns: files that are never half written, names, torchvision."""
