/* Passes over tokens in single precision. */
#define REAL float
#define ENTRY(name) name##_f32
#include "passes.h"

#include "feature.h"
#include "switched.h"
