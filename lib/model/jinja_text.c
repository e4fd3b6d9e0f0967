/* How values are written: str(), repr() and JSON, as Python does it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/jinja_impl.h"

/* The shortest digits that read back equal; an exponent from 1e16 up and below 1e-4; ".0" behind whole numbers. */
void jfloat_text(double f, char dst[40])
{
	char digits[32], *e;
	int exponent, n;

	if (!isfinite(f)) {
		strcpy(dst, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
		return;
	}
	for (n = 0; n < 17; n++) {
		snprintf(digits, sizeof(digits), "%.*e", n, f);
		if (strtod(digits, NULL) == f)
			break;
	}
	e = strchr(digits, 'e');
	exponent = atoi(e + 1);
	if (exponent < -4 || exponent >= 16) {
		*e = 0;
		snprintf(dst, 40, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent) % 1000);
	} else {
		int decimals = n - exponent;
		snprintf(dst, 40, "%.*f", decimals > 1 ? decimals : 1, f);
	}
}

static int put(struct jx *x, struct buf *b, const char *p, size_t n)
{
	buf_add(b, p, n);
	if (b->nomem)
		return err_nomem(x->err, n, "text");
	if (b->len > JINJA_MAX_MEMORY)
		return jx_fail(x, "text too long");
	return jx_step(x, n / 64);
}

static int put_text(struct jx *x, struct buf *b, const char *s)
{
	return put(x, b, s, strlen(s));
}

static int put_escape(struct jx *x, struct buf *b, const char *fmt, uint32_t c)
{
	char s[16];
	int n = snprintf(s, sizeof(s), fmt[0] == 'x' ? "\\x%02" PRIx32 : fmt[0] == 'u' ?
		"\\u%04" PRIx32 : "\\U%08" PRIx32, c);

	return put(x, b, s, (size_t)n);
}

/* Python's repr of a string: single quotes, unless it has those and no double ones.  What is not printable, as far as
 * that is a matter of control characters and separators, is escaped. */
static int repr_string(struct jx *x, struct jstr s, struct buf *b)
{
	char quote = s.n && memchr(s.p, '\'', s.n) && !memchr(s.p, '"', s.n) ? '"' : '\'';
	int rc = put(x, b, &quote, 1);

	for (size_t i = 0, len; !rc && i < s.n; i += len) {
		uint32_t c = utf8_get(s.p + i, &len);
		char pair[2] = { '\\', s.p[i] };
		if (c == '\n' || c == '\r' || c == '\t')
			rc = put_text(x, b, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
		else if (c == '\\' || c == (unsigned char)quote)
			rc = put(x, b, pair, 2);
		else if (c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad)
			rc = put_escape(x, b, "x", c);
		else if (c != ' ' && (jspace(c) || (c >= 0x200b && c <= 0x200f) || c == 0xfeff))
			rc = put_escape(x, b, "u", c);
		else
			rc = put(x, b, s.p + i, len);
	}
	return rc ? rc : put(x, b, &quote, 1);
}

static int repr_list(struct jx *x, const struct jlist *l, struct buf *b)
{
	int rc = put_text(x, b, l->tuple ? "(" : "[");

	for (size_t i = 0; !rc && i < l->n; i++)
		rc = (i && put_text(x, b, ", ")) || jv_repr(x, l->v[i], b) ? x->err->code : 0;
	if (!rc && l->tuple && l->n == 1)
		rc = put_text(x, b, ",");
	return rc ? rc : put_text(x, b, l->tuple ? ")" : "]");
}

static int repr_dict(struct jx *x, const struct jdict *d, struct buf *b)
{
	int rc = put_text(x, b, "{");

	for (size_t i = 0; !rc && i < d->n; i++)
		rc = (i && put_text(x, b, ", ")) || jv_repr(x, d->v[i].key, b) || put_text(x, b, ": ") ||
			jv_repr(x, d->v[i].val, b) ?
			x->err->code : 0;
	return rc ? rc : put_text(x, b, "}");
}

/* Short forms of what is neither a string nor a collection; false for those. */
static bool scalar_text(struct jval v, char dst[40])
{
	switch (v.kind) {
	case J_UNDEF: *dst = 0; return true;
	case J_NONE:  strcpy(dst, "None"); return true;
	case J_BOOL:  strcpy(dst, v.b ? "True" : "False"); return true;
	case J_INT:   snprintf(dst, 40, "%" PRId64, v.i); return true;
	case J_FLOAT: jfloat_text(v.f, dst); return true;
	default:      return false;
	}
}

int jv_repr(struct jx *x, struct jval v, struct buf *b)
{
	char s[40];
	int rc = jx_enter(x);

	if (rc)
		goto out;
	if (scalar_text(v, s))
		rc = put_text(x, b, v.kind == J_UNDEF ? "Undefined" : s);
	else if (v.kind == J_STR)
		rc = repr_string(x, v.s, b);
	else if (v.kind == J_LIST)
		rc = repr_list(x, v.list, b);
	else if (v.kind == J_DICT)
		rc = repr_dict(x, v.dict, b);
	else
		rc = jx_fail(x, "a %s cannot be written as text", jv_type(v));
out:
	x->depth--;
	return rc;
}

int jv_text(struct jx *x, struct jval v, struct jstr *out)
{
	struct buf b = { 0 };
	struct jval s;
	char scalar[40];
	int rc;

	if (v.kind == J_STR) {
		*out = v.s;
		return 0;
	}
	if (scalar_text(v, scalar))
		buf_str(&b, scalar);
	rc = scalar_text(v, scalar) ? 0 : jv_repr(x, v, &b);
	if (!rc)
		rc = b.nomem ? err_nomem(x->err, 40, "text") : jv_copy(x, b.p, b.len, &s);
	if (!rc)
		*out = s.s;
	buf_free(&b);
	return rc;
}

/* ---- JSON, as json.dumps writes it ---- */

struct json_style { bool ascii, sorted; int64_t indent; struct jstr item, key; };

static int json_value(struct jx *x, const struct json_style *st, struct jval v, int level, struct buf *b);

static int json_char(struct jx *x, const struct json_style *st, uint32_t c, const char *p, size_t len, struct buf *b)
{
	static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
	const char *simple = c && c < 0x80 ? strchr(from, (int)c) : NULL;
	char s[2] = { '\\' };

	if (simple) {
		s[1] = to[simple - from];
		return put(x, b, s, 2);
	}
	if (c < 0x20 || (st->ascii && c >= 0x7f && c < 0x10000))
		return put_escape(x, b, "u", c);
	if (st->ascii && c >= 0x10000)
		return put_escape(x, b, "u", 0xd800 + ((c - 0x10000) >> 10)) ||
			put_escape(x, b, "u", 0xdc00 + ((c - 0x10000) & 0x3ff)) ?
			x->err->code : 0;
	return put(x, b, p, len);
}

static int json_string_text(struct jx *x, const struct json_style *st, struct jstr s, struct buf *b)
{
	int rc = put_text(x, b, "\"");

	for (size_t i = 0, len; !rc && i < s.n; i += len) {
		uint32_t c = utf8_get(s.p + i, &len);
		rc = json_char(x, st, c, s.p + i, len, b);
	}
	return rc ? rc : put_text(x, b, "\"");
}

static int new_line(struct jx *x, const struct json_style *st, int level, struct buf *b)
{
	int rc = st->indent < 0 ? 0 : put_text(x, b, "\n");

	for (int64_t i = 0; !rc && i < st->indent * level; i++)
		rc = put_text(x, b, " ");
	return rc;
}

static int json_list(struct jx *x, const struct json_style *st, const struct jlist *l, int level, struct buf *b)
{
	int rc = put_text(x, b, "[");

	for (size_t i = 0; !rc && i < l->n; i++)
		rc = (i && put(x, b, st->item.p, st->item.n)) || new_line(x, st, level + 1, b) ||
			json_value(x, st, l->v[i], level + 1, b) ?
			x->err->code : 0;
	if (!rc && l->n)
		rc = new_line(x, st, level, b);
	return rc ? rc : put_text(x, b, "]");
}

static int json_key(struct jx *x, const struct json_style *st, struct jval k, struct buf *b)
{
	char s[40];

	if (k.kind == J_STR)
		return json_string_text(x, st, k.s, b);
	if (k.kind == J_NONE || k.kind == J_BOOL)
		strcpy(s, k.kind == J_NONE ? "null" : k.b ? "true" : "false");
	else if (k.kind == J_UNDEF || !scalar_text(k, s))
		return jx_fail(x, "a %s cannot be a key in JSON", jv_type(k));
	return json_string_text(x, st, jstr_of(s), b);
}

static int entry_cmp(const void *a, const void *b)
{
	const struct jentry *p = a, *q = b;
	size_t n = p->key.s.n < q->key.s.n ? p->key.s.n : q->key.s.n;
	int c = n ? memcmp(p->key.s.p, q->key.s.p, n) : 0;

	return c ? c : (p->key.s.n > q->key.s.n) - (p->key.s.n < q->key.s.n);
}

static int sorted_entries(struct jx *x, const struct jdict *d, const struct jentry **out)
{
	struct jentry *v = jx_alloc(x, d->n * sizeof(*v));

	if (!v || jx_step(x, d->n * 8))
		return x->err->code;
	for (size_t i = 0; i < d->n; i++) {
		v[i] = d->v[i];
		if (v[i].key.kind != J_STR)
			return jx_fail(x, "keys that are not all strings cannot be sorted");
	}
	qsort(v, d->n, sizeof(*v), entry_cmp);
	*out = v;
	return 0;
}

static int json_dict(struct jx *x, const struct json_style *st, const struct jdict *d, int level, struct buf *b)
{
	const struct jentry *v = d->v;
	int rc = put_text(x, b, "{");

	if (!rc && st->sorted && d->n)
		rc = sorted_entries(x, d, &v);
	for (size_t i = 0; !rc && i < d->n; i++)
		rc = (i && put(x, b, st->item.p, st->item.n)) || new_line(x, st, level + 1, b) ||
			json_key(x, st, v[i].key, b) ||
			put(x, b, st->key.p, st->key.n) || json_value(x, st, v[i].val, level + 1, b) ? x->err->code : 0;
	if (!rc && d->n)
		rc = new_line(x, st, level, b);
	return rc ? rc : put_text(x, b, "}");
}

static int json_value(struct jx *x, const struct json_style *st, struct jval v, int level, struct buf *b)
{
	char s[40];
	int rc = jx_enter(x);

	if (!rc)
		switch (v.kind) {
		case J_NONE: rc = put_text(x, b, "null"); break;
		case J_BOOL: rc = put_text(x, b, v.b ? "true" : "false"); break;
		case J_STR:  rc = json_string_text(x, st, v.s, b); break;
		case J_LIST: rc = json_list(x, st, v.list, level, b); break;
		case J_DICT: rc = json_dict(x, st, v.dict, level, b); break;
		case J_INT: case J_FLOAT:
			scalar_text(v, s);
			rc = put_text(x, b, s);
			break;
		default: rc = jx_fail(x, "a %s cannot be written as JSON", jv_type(v));
		}
	x->depth--;
	return rc;
}

static int json_style(struct jx *x, const struct jargs *a, struct json_style *st)
{
	static const char *const names[] = { "ensure_ascii", "indent", "separators", "sort_keys", NULL };
	struct jval ascii = jv_bool(false), indent = jv_none(), separators = jv_none(), sorted = jv_bool(false);

	if (args_check(x, a, 4, names, "tojson"))
		return x->err->code;
	args_get(a, 0, "ensure_ascii", &ascii);
	args_get(a, 1, "indent", &indent);
	args_get(a, 2, "separators", &separators);
	args_get(a, 3, "sort_keys", &sorted);
	st->ascii = jv_true(ascii);
	st->sorted = jv_true(sorted);
	if (indent.kind != J_NONE && (indent.kind != J_INT || indent.i < 0 || indent.i > 64))
		return jx_fail(x, "tojson: 'indent' is not in 0..64");
	st->indent = indent.kind == J_INT ? indent.i : -1;
	st->item = jstr_of(st->indent < 0 ? ", " : ",");
	st->key = jstr_of(": ");
	if (separators.kind == J_NONE)
		return 0;
	if (separators.kind != J_LIST || separators.list->n != 2 || separators.list->v[0].kind != J_STR ||
		separators.list->v[1].kind != J_STR)
		return jx_fail(x, "tojson: 'separators' is not two strings");
	st->item = separators.list->v[0].s;
	st->key = separators.list->v[1].s;
	return 0;
}

int jv_tojson(struct jx *x, const struct jargs *a, struct jval v, struct jval *out)
{
	struct json_style st;
	struct buf b = { 0 };
	int rc = json_style(x, a, &st);

	if (!rc)
		rc = json_value(x, &st, v, 0, &b);
	if (!rc)
		rc = jv_copy(x, b.p, b.len, out);
	buf_free(&b);
	return rc;
}
