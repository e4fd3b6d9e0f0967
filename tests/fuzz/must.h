/* What a fuzzer finds, with its place. */
#ifndef DS_TESTS_MUST_H
#define DS_TESTS_MUST_H

#include <stdio.h>
#include <stdlib.h>

#define must(holds) ((holds) ? (void)0 : must_fail(__FILE__, __LINE__, #holds))

static inline void must_fail(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: must hold: %s\n", file, line, what);
	abort();
}

#endif
