/* Passes over tokens in double precision. */
#define REAL double
#define ENTRY(name) name##_f64
#include "passes.h"

#include "feature.h"
#include "switched.h"
