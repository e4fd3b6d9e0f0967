#include "base/time.h"

#include <time.h>

static int64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t time_mono_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

int64_t time_wall_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}
