#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/time.h"

static struct {
	const char *program;
	int json, level;
} conf = { .program = "dsutils" };

void log_init(const char *program, int json, int level)
{
	conf.program = program;
	conf.json = json;
	conf.level = level;
}

/* One write(2) a record; what cannot be written to stderr cannot be reported either. */
static void put(const char *p, size_t n)
{
	ssize_t r = write(STDERR_FILENO, p, n);

	(void)r;
}

/* 2024-03-01T12:00:00.000000Z of a time in ns since 1970, without the NUL.  gmtime_r takes a lock, which a signal
 * handler may not. */
enum { WHEN = 27 };

static void put_number(char *at, int digits, int64_t v)
{
	for (at += digits; digits--; v /= 10)
		*--at = (char)('0' + v % 10);
}

static bool leap(int64_t year)
{
	return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

static void put_when(char at[WHEN], int64_t ns)
{
	static const int lengths[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
	int64_t sec = ns / 1000000000, day = sec / 86400, year = 1970;
	int month = 0;

	for (; day >= 365 + leap(year); year++)
		day -= 365 + leap(year);
	for (; day >= lengths[month] + (month == 1 && leap(year)); month++)
		day -= lengths[month] + (month == 1 && leap(year));
	memcpy(at, "0000-00-00T00:00:00.000000Z", WHEN);
	put_number(at, 4, year);
	put_number(at + 5, 2, month + 1);
	put_number(at + 8, 2, day + 1);
	put_number(at + 11, 2, sec / 3600 % 24);
	put_number(at + 14, 2, sec / 60 % 60);
	put_number(at + 17, 2, sec % 60);
	put_number(at + 20, 6, ns / 1000 % 1000000);
}

static void add_json(struct buf *b, enum log_level level, const char *text)
{
	static const char *const names[] = { "error", "warning", "info", "debug" };
	char when[WHEN + 1] = { 0 };
	struct jw w;

	put_when(when, time_wall_ns());
	jw_init(&w, b);
	jw_obj(&w);
	jw_key(&w, "time");
	jw_str(&w, when);
	jw_key(&w, "level");
	jw_str(&w, names[level + 1]);
	jw_key(&w, "program");
	jw_str(&w, conf.program);
	jw_key(&w, "pid");
	jw_int(&w, getpid());
	jw_key(&w, "message");
	jw_str(&w, text);
	jw_obj_end(&w);
	buf_add(b, "\n", 1);
}

static void put_json(enum log_level level, const char *text)
{
	struct buf b = { 0 };

	add_json(&b, level, text);
	if (!b.nomem)
		put(b.p, b.len);
	buf_free(&b);
}

static size_t format_text(char *line, size_t size, const char *text)
{
	int n = snprintf(line, size, "%s: %s\n", conf.program, text);

	if (n >= (int)size) {
		n = (int)size - 1;
		line[n - 1] = '\n';
	}
	return (size_t)n;
}

static void put_text(const char *text)
{
	char line[1400];

	put(line, format_text(line, sizeof(line), text));
}

void log_msg(enum log_level level, const char *fmt, ...)
{
	char text[1200];
	va_list ap;

	if ((int)level > conf.level)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	err_one_line(text);
	if (conf.json)
		put_json(level, text);
	else
		put_text(text);
}

int log_err(const struct ds_err *err)
{
	log_msg(LOG_ERROR, "%s", err->text);
	return err->code;
}

bool log_make_record(struct log_record *r, const char *text)
{
	struct buf b = { 0 };
	char line[1400];

	if (conf.json)
		add_json(&b, LOG_ERROR, text);
	else
		buf_add(&b, line, format_text(line, sizeof(line), text));
	*r = (struct log_record){ b.p, b.len, conf.json };
	return !b.nomem;
}

void log_put_record(struct log_record *r)
{
	if (r->json)
		put_when(r->p + strlen("{\"time\":\""), time_wall_ns());
	put(r->p, r->n);
}

void log_free_record(struct log_record *r)
{
	free(r->p);
	*r = (struct log_record){ 0 };
}
