#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A message is one line whatever file name or peer text went into it. */
static void one_line(char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s < 0x20 || *s == 0x7f)
			*s = '?';
}

int err_set(struct ds_err *err, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	va_end(ap);
	one_line(err->text);
	err->code = code;
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
	one_line(err->text);
	err->code = code;
	errno = saved;
	return code;
}

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
	one_line(err->text);
	return err->code;
}

int err_nomem(struct ds_err *err, size_t bytes, const char *what)
{
	return err_set(err, DS_OS, "out of memory: %zu bytes for %s", bytes, what);
}
