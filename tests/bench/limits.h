/*
 * What the machine can do at most, measured in the same run: the best of some passes of the library's probes.
 */
#ifndef DS_TESTS_BENCH_LIMITS_H
#define DS_TESTS_BENCH_LIMITS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/time.h"
#include "kernels/probe.h"

static inline double bench_seconds(void)
{
	return (double)time_mono_ns() * 1e-9;
}

/* bytes a second */
__attribute__((unused)) static double limit_read(struct kern_stream *s, const void *p, size_t bytes)
{
	double best = 0;

	for (int pass = 0; pass < 5; pass++) {
		double r = kern_probe_read(s, p, bytes);

		best = r > best ? r : best;
	}
	return best;
}

/* The set's fastest multiply-add in operations a second (2 for a product and its sum). */
__attribute__((unused)) static double limit_multiply(struct kern_stream *s)
{
	double best = 0;

	for (int pass = 0; pass < 3; pass++) {
		double r = kern_probe_best(s);

		best = r > best ? r : best;
	}
	return best;
}

#endif
