/*
 * A strict JSON pull scanner without allocation, for files whose headers hold tens of thousands of small objects
 * (safetensors headers and indices).  Once something is wrong every call fails; `why` and the offset say what and
 * where.
 */
#ifndef DS_MODEL_SCAN_H
#define DS_MODEL_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct scan {
	const char *p, *end, *start;
	const char *why; /* NULL: fine so far */
};

/* A string as it lies in the text: no NUL, no escape sequence. */
struct span { const char *p; size_t n; };

void scan_init(struct scan *s, const char *text, size_t n);
bool scan_fail(struct scan *s, const char *why); /* returns false */
/* Skips white space and takes c, or fails. */
bool scan_take(struct scan *s, char c);
/* Skips white space; true, and takes it, if c follows. */
bool scan_maybe(struct scan *s, char c);
/* A string without escapes and control characters, in valid UTF-8. */
bool scan_string(struct scan *s, struct span *out);
/* A whole number without sign, exponent or leading zero. */
bool scan_uint(struct scan *s, uint64_t *out);
/* Any value, checked (depth at most 64). */
bool scan_skip(struct scan *s);
/* Nothing but white space may follow. */
bool scan_finish(struct scan *s);

static inline bool span_is(struct span a, const char *s)
{
	return a.n == __builtin_strlen(s) && !__builtin_memcmp(a.p, s, a.n);
}

#endif
