#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
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

static void put_json(enum log_level level, const char *text)
{
	static const char *const names[] = { "error", "warning", "info", "debug" };
	int64_t now = time_wall_ns();
	time_t sec = (time_t)(now / 1000000000);
	struct buf b = { 0 };
	struct tm tm;
	char when[64];
	size_t n;
	struct jw w;

	gmtime_r(&sec, &tm);
	n = strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(when + n, sizeof(when) - n, ".%06dZ", (int)(now % 1000000000 / 1000));
	jw_init(&w, &b);
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
	buf_add(&b, "\n", 1);
	if (!b.nomem)
		put(b.p, b.len);
	buf_free(&b);
}

static void put_text(const char *text)
{
	char line[1400];
	int n = snprintf(line, sizeof(line), "%s: %s\n", conf.program, text);

	if (n >= (int)sizeof(line)) {
		n = sizeof(line) - 1;
		line[n - 1] = '\n';
	}
	put(line, (size_t)n);
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
