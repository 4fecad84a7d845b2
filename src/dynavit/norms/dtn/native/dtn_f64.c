/* Dynamic Token Normalization in double precision. */
#define REAL double
#define REAL_BYTES 8
#define ENTRY(name) name##_f64
#include "entries.h"
