#include "model/scan.h"

#include <string.h>

#include "base/utf8.h"

void scan_init(struct scan *s, const char *text, size_t n)
{
	s->p = s->start = text;
	s->end = text + n;
	s->why = NULL;
}

bool scan_fail(struct scan *s, const char *why)
{
	if (!s->why)
		s->why = why;
	return false;
}

static void blanks(struct scan *s)
{
	while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t'))
		s->p++;
}

bool scan_maybe(struct scan *s, char c)
{
	if (s->why)
		return false;
	blanks(s);
	if (s->p == s->end || *s->p != c)
		return false;
	s->p++;
	return true;
}

bool scan_take(struct scan *s, char c)
{
	if (scan_maybe(s, c))
		return true;
	switch (c) {
	case '{': return scan_fail(s, "'{' expected");
	case '}': return scan_fail(s, "',' or '}' expected");
	case '[': return scan_fail(s, "'[' expected");
	case ']': return scan_fail(s, "',' or ']' expected");
	case ':': return scan_fail(s, "':' expected");
	case ',': return scan_fail(s, "',' expected");
	default: return scan_fail(s, "string expected");
	}
}

bool scan_finish(struct scan *s)
{
	if (s->why)
		return false;
	blanks(s);
	return s->p == s->end || scan_fail(s, "something follows the JSON value");
}

static bool escape(struct scan *s)
{
	size_t left = (size_t)(s->end - s->p);

	if (left < 2)
		return scan_fail(s, "unfinished string");
	if (s->p[1] != 'u') {
		if (!strchr("\"\\/bfnrt", s->p[1]) || !s->p[1])
			return scan_fail(s, "bad escape in a string");
		s->p += 2;
		return true;
	}
	if (left < 6)
		return scan_fail(s, "unfinished string");
	for (int i = 2; i < 6; i++)
		if (!s->p[i] || !strchr("0123456789abcdefABCDEF", s->p[i]))
			return scan_fail(s, "bad escape in a string");
	s->p += 6;
	return true;
}

/* The rest of a string after its first quote. */
static bool string_rest(struct scan *s, bool escapes)
{
	while (s->p < s->end) {
		unsigned char c = (unsigned char)*s->p;
		size_t n;

		if (c == '"') {
			s->p++;
			return true;
		}
		if (c < 0x20)
			return scan_fail(s, "control character in a string");
		if (c == '\\') {
			if (!escapes)
				return scan_fail(s, "escape sequence in a name");
			if (!escape(s))
				return false;
			continue;
		}
		n = utf8_char(s->p, (size_t)(s->end - s->p));
		if (!n)
			return scan_fail(s, "invalid UTF-8 in a string");
		s->p += n;
	}
	return scan_fail(s, "unfinished string");
}

bool scan_string(struct scan *s, struct span *out)
{
	out->p = "";
	out->n = 0;
	if (!scan_take(s, '"'))
		return false;
	out->p = s->p;
	if (!string_rest(s, false))
		return false;
	out->n = (size_t)(s->p - 1 - out->p);
	return true;
}

static bool digit(const struct scan *s)
{
	return s->p < s->end && *s->p >= '0' && *s->p <= '9';
}

bool scan_uint(struct scan *s, uint64_t *out)
{
	uint64_t v = 0;
	const char *first;

	*out = 0;
	if (s->why)
		return false;
	blanks(s);
	first = s->p;
	for (; digit(s); s->p++) {
		unsigned d = (unsigned)(*s->p - '0');

		if (v > (UINT64_MAX - d) / 10)
			return scan_fail(s, "number too large");
		v = v * 10 + d;
	}
	if (s->p == first || (*first == '0' && s->p - first > 1) ||
	    (s->p < s->end && (*s->p == '.' || *s->p == 'e' || *s->p == 'E')))
		return scan_fail(s, "whole number expected");
	*out = v;
	return true;
}

static bool digits(struct scan *s)
{
	if (!digit(s))
		return scan_fail(s, "bad number");
	while (digit(s))
		s->p++;
	return true;
}

static bool number(struct scan *s)
{
	if (s->p < s->end && *s->p == '-')
		s->p++;
	if (s->p < s->end && *s->p == '0')
		s->p++;
	else if (!digits(s))
		return false;
	if (s->p < s->end && *s->p == '.') {
		s->p++;
		if (!digits(s))
			return false;
	}
	if (s->p < s->end && (*s->p == 'e' || *s->p == 'E')) {
		s->p++;
		if (s->p < s->end && (*s->p == '+' || *s->p == '-'))
			s->p++;
		return digits(s);
	}
	return true;
}

static bool word(struct scan *s, const char *w)
{
	size_t n = strlen(w);

	if ((size_t)(s->end - s->p) < n || memcmp(s->p, w, n))
		return scan_fail(s, "JSON value expected");
	s->p += n;
	return true;
}

static bool skip_value(struct scan *s, int depth);

static bool skip_members(struct scan *s, int depth, char close, bool keys)
{
	if (scan_maybe(s, close))
		return true;
	do {
		if (keys && (!scan_take(s, '"') || !string_rest(s, true) || !scan_take(s, ':')))
			return false;
		if (!skip_value(s, depth))
			return false;
	} while (scan_maybe(s, ','));
	return scan_take(s, close);
}

static bool skip_value(struct scan *s, int depth)
{
	if (depth > 64)
		return scan_fail(s, "nested too deeply");
	if (scan_maybe(s, '"'))
		return string_rest(s, true);
	if (scan_maybe(s, '{'))
		return skip_members(s, depth + 1, '}', true);
	if (scan_maybe(s, '['))
		return skip_members(s, depth + 1, ']', false);
	if (s->why || s->p == s->end)
		return scan_fail(s, "JSON value expected");
	switch (*s->p) {
	case 't': return word(s, "true");
	case 'f': return word(s, "false");
	case 'n': return word(s, "null");
	default: return number(s);
	}
}

bool scan_skip(struct scan *s)
{
	return skip_value(s, 0);
}
