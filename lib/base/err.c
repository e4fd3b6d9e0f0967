#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Length of what may not reach a terminal at s: C0 and C1 controls, marks that turn the writing direction; 0 if
 * nothing. */
static size_t control_len(const unsigned char *s)
{
	if (s[0] < 0x20 || s[0] == 0x7f)
		return 1;
	if (s[0] == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0)
		return 2;
	/* U+200E, U+200F, U+2028 .. U+202E, U+2066 .. U+2069 */
	if (s[0] == 0xe2 && s[1] == 0x80 && (s[2] == 0x8e || s[2] == 0x8f || (s[2] >= 0xa8 && s[2] <= 0xae)))
		return 3;
	if (s[0] == 0xe2 && s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9)
		return 3;
	/* an 8-bit control where no character can begin */
	return s[0] >= 0x80 && s[0] < 0xa0 ? 1 : 0;
}

static size_t char_len(unsigned char c)
{
	return c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 1;
}

void err_one_line(char *text)
{
	unsigned char *s = (unsigned char *)text, *out = s;

	while (*s) {
		size_t bad = control_len(s), n = bad ? bad : strnlen((const char *)s, char_len(*s));

		if (bad)
			*out++ = '?';
		else
			for (size_t i = 0; i < n; i++)
				*out++ = s[i];
		s += n;
	}
	*out = '\0';
}

static __attribute__((format(printf, 4, 0))) int set(struct ds_err *err, int code, bool full, const char *fmt,
	va_list ap)
{
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	err_one_line(err->text);
	err->code = code;
	err->full = full;
	return code;
}

int err_set(struct ds_err *err, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	set(err, code, false, fmt, ap);
	va_end(ap);
	return code;
}

int err_full(struct ds_err *err, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	set(err, code, true, fmt, ap);
	va_end(ap);
	return code;
}

int err_errno(struct ds_err *err, int code, const char *fmt, ...)
{
	int saved = errno;
	size_t n;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	va_end(ap);
	n = strlen(err->text);
	snprintf(err->text + n, sizeof(err->text) - n, ": %s", strerror(saved));
	err_one_line(err->text);
	err->code = code;
	err->full = saved == ENOSPC || saved == EDQUOT;
	errno = saved;
	return code;
}

const char *plural(uint64_t n) { return n == 1 ? "" : "s"; }

int err_prefix(struct ds_err *err, const char *fmt, ...)
{
	char old[sizeof(err->text)];
	size_t n, room;
	va_list ap;

	memcpy(old, err->text, sizeof(old));
	va_start(ap, fmt);
	vsnprintf(err->text, sizeof(err->text) - 2, fmt, ap);
	va_end(ap);
	n = strlen(err->text);
	memcpy(err->text + n, ": ", 2);
	n += 2;
	room = strnlen(old, sizeof(err->text) - n - 1);
	memcpy(err->text + n, old, room);
	err->text[n + room] = '\0';
	err_one_line(err->text);
	return err->code;
}

int err_nomem(struct ds_err *err, size_t bytes, const char *what)
{
	return err_set(err, DS_OS, "out of memory: %zu bytes for %s", bytes, what);
}
