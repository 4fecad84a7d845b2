/* Dynamic Token Normalization in single precision. */
#define REAL float
#define REAL_BYTES 4
#define ENTRY(name) name##_f32
#include "entries.h"
