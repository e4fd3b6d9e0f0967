#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

void jw_init(struct jw *w, struct buf *b)
{
	memset(w, 0, sizeof(*w));
	w->b = b;
	w->first[0] = true;
}

/* Comma where one belongs: before every value but the first of its container, never after a key. */
static void before_value(struct jw *w)
{
	if (w->after_key) {
		w->after_key = false;
		return;
	}
	if (!w->first[w->depth])
		buf_add(w->b, ",", 1);
	w->first[w->depth] = false;
}

static void open_container(struct jw *w, const char *c)
{
	before_value(w);
	buf_str(w->b, c);
	if (w->depth + 1 < (int)ARRAY_LEN(w->first))
		w->depth++;
	w->first[w->depth] = true;
}

static void close_container(struct jw *w, const char *c)
{
	buf_str(w->b, c);
	if (w->depth > 0)
		w->depth--;
}

void jw_obj(struct jw *w) { open_container(w, "{"); }
void jw_obj_end(struct jw *w) { close_container(w, "}"); }
void jw_arr(struct jw *w) { open_container(w, "["); }
void jw_arr_end(struct jw *w) { close_container(w, "]"); }

static void quoted(struct buf *b, const char *s, size_t n)
{
	const unsigned char *p = (const unsigned char *)s;
	size_t i = 0, len;

	buf_add(b, "\"", 1);
	while (i < n) {
		len = utf8_char(s + i, n - i);
		if (len == 0) {
			buf_str(b, "\xef\xbf\xbd");
			i++;
		} else {
			if (p[i] == '"' || p[i] == '\\')
				buf_printf(b, "\\%c", p[i]);
			else if (p[i] == '\n')
				buf_str(b, "\\n");
			else if (p[i] == '\t')
				buf_str(b, "\\t");
			else if (p[i] < 0x20 || p[i] == 0x7f)
				buf_printf(b, "\\u%04x", p[i]);
			else
				buf_add(b, p + i, len);
			i += len;
		}
	}
	buf_add(b, "\"", 1);
}

void jw_key(struct jw *w, const char *key)
{
	before_value(w);
	quoted(w->b, key, strlen(key));
	buf_add(w->b, ":", 1);
	w->after_key = true;
}

void jw_strn(struct jw *w, const char *s, size_t n)
{
	before_value(w);
	quoted(w->b, s, n);
}

void jw_str(struct jw *w, const char *s)
{
	jw_strn(w, s, strlen(s));
}

void jw_int(struct jw *w, int64_t v)
{
	before_value(w);
	buf_printf(w->b, "%" PRId64, v);
}

void jw_uint(struct jw *w, uint64_t v)
{
	before_value(w);
	buf_printf(w->b, "%" PRIu64, v);
}

void jw_real(struct jw *w, double v)
{
	char s[40];

	before_value(w);
	if (!isfinite(v)) {
		buf_str(w->b, "null");
		return;
	}
	for (int digits = 6; digits <= 17; digits++) {
		snprintf(s, sizeof(s), "%.*g", digits, v);
		if (strtod(s, NULL) == v)
			break;
	}
	buf_str(w->b, s);
}

void jw_bool(struct jw *w, bool v)
{
	before_value(w);
	buf_str(w->b, v ? "true" : "false");
}

void jw_null(struct jw *w)
{
	before_value(w);
	buf_str(w->b, "null");
}

void jw_put_uint(struct jw *w, const char *key, uint64_t v)
{
	jw_key(w, key);
	jw_uint(w, v);
}

void jw_put_real(struct jw *w, const char *key, double v)
{
	jw_key(w, key);
	jw_real(w, v);
}

void jw_put_str(struct jw *w, const char *key, const char *s)
{
	jw_key(w, key);
	jw_strn(w, s, strlen(s));
}

void jw_put_hex(struct jw *w, const char *key, uint64_t v)
{
	char text[17];

	snprintf(text, sizeof text, "%016llx", (unsigned long long)v);
	jw_put_str(w, key, text);
}

void jw_raw(struct jw *w, const char *json, size_t n)
{
	before_value(w);
	buf_add(w->b, json, n);
}
