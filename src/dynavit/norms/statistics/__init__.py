"""Statistics that several norms take: over tokens, over processes, and smoothed over steps."""
