"""ListOps: nested lists of digits and operators, whose value is a digit. Made here, or read from files of other projects."""
