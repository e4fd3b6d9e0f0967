/* Clocks, in nanoseconds. */
#ifndef DS_BASE_TIME_H
#define DS_BASE_TIME_H

#include <stdint.h>

int64_t time_mono_ns(void);
int64_t time_wall_ns(void); /* since 1970, UTC */

#endif
