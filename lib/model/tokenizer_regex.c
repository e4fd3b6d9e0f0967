/*
 * Patterns of tokenizer.json are written for the regular expressions of the Rust world (Oniguruma, or the regex crate).
 * PCRE2 reads most of them in the same way; this is the list of what it does, and everything else is refused by name
 * rather than read differently.
 *
 * The differences that matter: \s is the property White_Space there (with U+0085, without U+180E); \h and \v mean other
 * things; "[a&&b]" and
 * "[[a]b]" are set operations; "{,n}" counts.
 */
#include <stdio.h>
#include <string.h>

#include "model/tokenizer_impl.h"

struct scan {
	const char *p;
	size_t n, i;
	const char *name;
	struct buf *out;
	struct ds_err *err;
};

static int refuse(struct scan *s, size_t at, size_t len, const char *what)
{
	if (len > s->n - at)
		len = s->n - at;
	return err_set(s->err, DS_DATA, "'%s': pattern uses '%.*s' (%s), which this program does not know", s->name,
		(int)len, s->p + at, what);
}

static bool is_hex(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* \p{Name}, \pL; \x{HEX}, \xHH: copied whole. */
static int braced_escape(struct scan *s, bool hex)
{
	size_t at = s->i, end = at + 2;

	if (end < s->n && s->p[end] == '{') {
		while (end < s->n && s->p[end] != '}')
			end++;
		if (end == s->n)
			return refuse(s, at, 8, "without '}'");
		end++;
	} else {
		end += hex ? 2 : 1;
	}
	if (end > s->n || (hex && !is_hex(s->p[at + 2]) && s->p[at + 2] != '{'))
		return refuse(s, at, 4, "cut short");
	buf_add(s->out, s->p + at, end - at);
	s->i = end;
	return 0;
}

static int escape(struct scan *s)
{
	char c;

	if (s->i + 1 >= s->n)
		return refuse(s, s->i, 1, "at the end");
	c = s->p[s->i + 1];
	switch (c) {
	case 's':
		buf_str(s->out, "\\p{White_Space}");
		break;
	case 'S':
		buf_str(s->out, "\\P{White_Space}");
		break;
	case 'p': case 'P':
		return braced_escape(s, false);
	case 'x':
		return braced_escape(s, true);
	case 'd': case 'D': case 'r': case 'n': case 't': case 'f': /* \d: with UCP the property Nd, as there */
		buf_add(s->out, s->p + s->i, 2);
		break;
	default:
		if ((unsigned char)c >= 0x80 || c <= ' ' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
			(c >= 'a' && c <= 'z'))
			return refuse(s, s->i, 2, "escape");
		buf_add(s->out, s->p + s->i, 2);
	}
	s->i += 2;
	return 0;
}

static int class(struct scan *s)
{
	size_t at = s->i;

	buf_add(s->out, "[", 1);
	s->i++;
	if (s->i < s->n && s->p[s->i] == '^') {
		buf_add(s->out, "^", 1);
		s->i++;
	}
	if (s->i < s->n && s->p[s->i] == ']')
		return refuse(s, at, 3, "']' first in a class");
	while (s->i < s->n && s->p[s->i] != ']') {
		if (s->p[s->i] == '\\') {
			if (escape(s))
				return s->err->code;
			continue;
		}
		if (s->p[s->i] == '[')
			return refuse(s, at, s->i + 2 - at, "a class within a class");
		if (s->i + 1 < s->n && strchr("&-~", s->p[s->i]) && s->p[s->i] == s->p[s->i + 1])
			return refuse(s, s->i, 2, "operation on classes");
		buf_add(s->out, s->p + s->i++, 1);
	}
	if (s->i == s->n)
		return refuse(s, at, 8, "class without ']'");
	buf_add(s->out, "]", 1);
	s->i++;
	return 0;
}

/* "{n}", "{n,}", "{n,m}"; nothing that makes it lazy or possessive behind it but '?'. */
static int counted(struct scan *s)
{
	size_t at = s->i, end = at + 1, digits = 0, commas = 0;

	for (; end < s->n && s->p[end] != '}'; end++) {
		if (s->p[end] == ',' && digits && !commas)
			commas++;
		else if (s->p[end] >= '0' && s->p[end] <= '9')
			digits++;
		else
			return refuse(s, at, end + 1 - at, "repeat count");
	}
	if (end == s->n || !digits)
		return refuse(s, at, 3, "repeat count");
	end++;
	if (end < s->n && s->p[end] == '+')
		return refuse(s, at, end + 1 - at, "'+' behind a repeat count");
	buf_add(s->out, s->p + at, end - at);
	s->i = end;
	return 0;
}

static int group(struct scan *s)
{
	static const char *const known[] = { "(?:", "(?!", "(?=", "(?<=", "(?<!", "(?i:", "(?>" };

	if (s->i + 1 < s->n && (s->p[s->i + 1] == '?' || s->p[s->i + 1] == '*')) {
		for (size_t k = 0; k < ARRAY_LEN(known); k++) {
			size_t len = strlen(known[k]);
			if (s->n - s->i >= len && !memcmp(s->p + s->i, known[k], len)) {
				buf_add(s->out, known[k], len);
				s->i += len;
				return 0;
			}
		}
		return refuse(s, s->i, 4, "group");
	}
	buf_add(s->out, "(", 1);
	s->i++;
	return 0;
}

int regex_translate(const char *p, size_t n, const char *name, struct buf *out, struct ds_err *err)
{
	struct scan s = { .p = p, .n = n, .name = name, .out = out, .err = err };
	int rc = 0;

	if (n > TOKENIZER_MAX_PATTERN)
		return err_set(err, DS_DATA, "'%s': pattern of %zu bytes, at most %d are read", name, n,
			TOKENIZER_MAX_PATTERN);
	while (!rc && s.i < n) {
		switch (p[s.i]) {
		case '\\': rc = escape(&s); break;
		case '[':  rc = class(&s); break;
		case '{':  rc = counted(&s); break;
		case '(':  rc = group(&s); break;
		case '^':  rc = refuse(&s, s.i, 1, "anchor"); break;
		case ']': case '}': rc = refuse(&s, s.i, 1, "unescaped"); break;
		default:
			buf_add(out, p + s.i++, 1);
		}
	}
	if (!rc && out->nomem)
		rc = err_nomem(err, n, "a pattern");
	return rc;
}
