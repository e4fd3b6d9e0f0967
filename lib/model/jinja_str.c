/* Methods of strings, as Python has them. */
#include <locale.h>
#include <string.h>
#include <wctype.h>

#include "base/utf8.h"
#include "model/jinja_impl.h"

static bool in_set(uint32_t c, const struct jstr *set)
{
	if (!set)
		return jspace(c);
	for (size_t i = 0, len; i < set->n; i += len)
		if (utf8_get(set->p + i, &len) == c)
			return true;
	return false;
}

struct jstr jstr_strip(struct jstr s, const struct jstr *chars, int sides)
{
	size_t len;

	while ((sides & STRIP_LEFT) && s.n && in_set(utf8_get(s.p, &len), chars)) {
		s.p += len;
		s.n -= len;
	}
	while ((sides & STRIP_RIGHT) && s.n) {
		size_t at = s.n - 1;
		while (at && ((unsigned char)s.p[at] & 0xc0) == 0x80)
			at--;
		if (!in_set(utf8_get(s.p + at, &len), chars))
			break;
		s.n = at;
	}
	return s;
}

/* Case of single characters, in the way of Unicode whatever the locale of the process. */
int jstr_case(struct jx *x, struct jstr s, char how, struct jval *out)
{
	locale_t unicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
	struct buf b = { 0 };
	bool word = false;
	int rc;

	if (!unicode)
		return err_set(x->err, DS_OS, "locale 'C.UTF-8' is not available");
	for (size_t i = 0, len; i < s.n; i += len) {
		wint_t c = (wint_t)utf8_get(s.p + i, &len);
		bool up = how == 'u' || (how == 't' && !word) || (how == 'c' && !i);
		char p[4];
		word = iswalpha_l(c, unicode);
		if (how == 'u' && c == 0xdf) { /* the one common letter that becomes two */
			buf_str(&b, "SS");
			continue;
		}
		c = up ? towupper_l(c, unicode) : towlower_l(c, unicode);
		buf_add(&b, p, utf8_put((uint32_t)c, p));
	}
	freelocale(unicode);
	rc = b.nomem ? err_nomem(x->err, s.n, "text") : jv_copy(x, b.p, b.len, out);
	buf_free(&b);
	return rc ? rc : jx_step(x, s.n / 4);
}

/* memmem that finds an empty needle, and nothing in an empty text. */
static const char *find(struct jstr s, size_t from, struct jstr what)
{
	if (from > s.n || what.n > s.n - from)
		return NULL;
	return what.n ? memmem(s.p + from, s.n - from, what.p, what.n) : s.p + from;
}

static const char *find_last(struct jstr s, struct jstr what)
{
	for (size_t i = s.n + 1; i-- > 0; )
		if (s.n - i >= what.n && (!what.n || !memcmp(s.p + i, what.p, what.n)))
			return s.p + i;
	return NULL;
}

/* What that may cost: it tries every place. */
static size_t last_cost(struct jstr s, struct jstr what)
{
	return s.n / 8 * (what.n / 64 + 1);
}

int jstr_replace(struct jx *x, struct jstr s, struct jstr from, struct jstr to, int64_t count, struct jval *out)
{
	struct buf b = { 0 };
	size_t done = 0, at = 0, len;
	int rc = 0;

	for (; count != 0 && at <= s.n && !rc; count -= count > 0) {
		const char *p = find(s, at, from);
		if (!p)
			break;
		buf_add(&b, s.p + done, (size_t)(p - s.p) - done);
		buf_add(&b, to.p, to.n);
		done = (size_t)(p - s.p) + from.n;
		at = done;
		if (!from.n) { /* between all characters */
			len = 1;
			if (done < s.n)
				utf8_get(s.p + done, &len);
			at += len;
		}
		rc = jx_step(x, 1 + to.n / 64);
		if (!rc && b.len > JINJA_MAX_MEMORY)
			rc = jx_fail(x, "string too long");
	}
	buf_add(&b, s.p + done, s.n - done);
	if (!rc)
		rc = b.nomem ? err_nomem(x->err, b.len, "text") : jv_copy(x, b.p, b.len, out);
	buf_free(&b);
	return rc;
}

/* ---- splitting ---- */

static int add_part(struct jx *x, struct jval *list, const char *from, const char *to)
{
	return jlist_add(x, list->list, jv_str(from, (size_t)(to - from)));
}

/* Runs of white space; none of the parts is empty. */
static int split_space(struct jx *x, struct jstr s, int64_t max, struct jval *out)
{
	size_t len;

	s = jstr_strip(s, NULL, STRIP_LEFT);
	for (; s.n && max != 0; max -= max > 0) {
		size_t end = 0;
		while (end < s.n && !jspace(utf8_get(s.p + end, &len)))
			end += len;
		if (add_part(x, out, s.p, s.p + end))
			return x->err->code;
		s.p += end;
		s.n -= end;
		s = jstr_strip(s, NULL, STRIP_LEFT);
	}
	s = jstr_strip(s, NULL, STRIP_RIGHT);
	return s.n ? add_part(x, out, s.p, s.p + s.n) : 0;
}

static int split_at(struct jx *x, struct jstr s, struct jstr sep, int64_t max, struct jval *out)
{
	size_t done = 0;
	const char *p;

	for (; max != 0 && (p = find(s, done, sep)); max -= max > 0) {
		if (add_part(x, out, s.p + done, p))
			return x->err->code;
		done = (size_t)(p - s.p) + sep.n;
	}
	return add_part(x, out, s.p + done, s.p + s.n);
}

static int rsplit_at(struct jx *x, struct jstr s, struct jstr sep, int64_t max, struct jval *out)
{
	const char *p;

	for (; max != 0 && (p = find_last(s, sep)); max -= max > 0) {
		if (add_part(x, out, p + sep.n, s.p + s.n) || jx_step(x, last_cost(s, sep)))
			return x->err->code;
		s.n = (size_t)(p - s.p);
	}
	if (add_part(x, out, s.p, s.p + s.n))
		return x->err->code;
	for (size_t i = 0, n = out->list->n; i < n / 2; i++) {
		struct jval v = out->list->v[i];
		out->list->v[i] = out->list->v[n - 1 - i];
		out->list->v[n - 1 - i] = v;
	}
	return 0;
}

static int method_split(struct jx *x, struct jstr s, bool right, const struct jargs *a, struct jval *out)
{
	static const char *const names[] = { "sep", "maxsplit", NULL };
	int64_t max = -1;
	struct jstr sep;
	bool given;

	if (args_check(x, a, 2, names, "split") || args_str(x, a, 0, "sep", &sep, &given, "split") ||
	    args_int(x, a, 1, "maxsplit", &max, "split") || jv_list(x, false, out) || jx_step(x, s.n / 64))
		return x->err->code;
	if (given && !sep.n)
		return jx_fail(x, "split: empty separator");
	if (!given && right && max >= 0)
		return jx_fail(x, "rsplit: by white space with a limit is not known");
	if (!given)
		return split_space(x, s, max, out);
	return right && max >= 0 ? rsplit_at(x, s, sep, max, out) : split_at(x, s, sep, max, out);
}

static int method_splitlines(struct jx *x, struct jstr s, const struct jargs *a, struct jval *out)
{
	static const char *const names[] = { "keepends", NULL };
	struct jval keep = jv_bool(false);
	size_t start = 0, len;

	if (args_check(x, a, 1, names, "splitlines") || jv_list(x, false, out))
		return x->err->code;
	args_get(a, 0, "keepends", &keep);
	for (size_t i = 0; i < s.n; i += len) {
		uint32_t c = utf8_get(s.p + i, &len);
		if (!((c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029))
			continue;
		if (c == '\r' && i + 1 < s.n && s.p[i + 1] == '\n')
			len++;
		if (add_part(x, out, s.p + start, s.p + i + (jv_true(keep) ? len : 0)))
			return x->err->code;
		start = i + len;
	}
	return start < s.n ? add_part(x, out, s.p + start, s.p + s.n) : 0;
}

static int method_partition(struct jx *x, struct jstr s, bool right, struct jstr sep, struct jval *out)
{
	const char *p;

	if (!sep.n)
		return jx_fail(x, "partition: empty separator");
	if (jx_step(x, last_cost(s, sep)))
		return x->err->code;
	p = right ? find_last(s, sep) : find(s, 0, sep);
	if (jv_list(x, true, out))
		return x->err->code;
	if (p)
		return add_part(x, out, s.p, p) || add_part(x, out, p, p + sep.n) ||
			add_part(x, out, p + sep.n, s.p + s.n) ? x->err->code : 0;
	if (right)
		return add_part(x, out, s.p, s.p) || add_part(x, out, s.p, s.p) || add_part(x, out, s.p, s.p + s.n) ?
			x->err->code : 0;
	return add_part(x, out, s.p, s.p + s.n) || add_part(x, out, s.p, s.p) || add_part(x, out, s.p, s.p) ?
		x->err->code : 0;
}

/* ---- asking ---- */

static bool has_affix(struct jstr s, struct jstr affix, bool end)
{
	return s.n >= affix.n && (!affix.n || !memcmp(end ? s.p + s.n - affix.n : s.p, affix.p, affix.n));
}

/* startswith, endswith: one string or a tuple of them */
static int method_affix(struct jx *x, struct jstr s, bool end, const struct jargs *a, struct jval *out)
{
	struct jval v;
	bool yes = false;

	if (a->n != 1 || a->nkw)
		return jx_fail(x, "startswith, endswith: one argument is needed");
	v = a->v[0];
	if (v.kind == J_STR)
		yes = has_affix(s, v.s, end);
	else if (v.kind != J_LIST || !v.list->tuple)
		return jx_fail(x, "startswith, endswith: '%s' where a string or a tuple is needed", jv_type(v));
	for (size_t i = 0; v.kind == J_LIST && i < v.list->n; i++) {
		if (v.list->v[i].kind != J_STR)
			return jx_fail(x, "startswith, endswith: '%s' where a string is needed", jv_type(v.list->v[i]));
		yes |= has_affix(s, v.list->v[i].s, end);
	}
	*out = jv_bool(yes);
	return 0;
}

static int method_is(struct jx *x, struct jstr s, struct jstr name, struct jval *out)
{
	locale_t unicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
	bool all = s.n > 0, upper = false, lower = false;

	if (!unicode)
		return err_set(x->err, DS_OS, "locale 'C.UTF-8' is not available");
	for (size_t i = 0, len; i < s.n; i += len) {
		uint32_t c = utf8_get(s.p + i, &len);
		upper |= iswupper_l((wint_t)c, unicode) != 0;
		lower |= iswlower_l((wint_t)c, unicode) != 0;
		if (jstr_is(name, "isdigit"))
			all &= c >= '0' && c <= '9';
		else if (jstr_is(name, "isspace"))
			all &= jspace(c);
		else
			all &= iswalpha_l((wint_t)c, unicode) && !(c >= '0' && c <= '9');
	}
	freelocale(unicode);
	*out = jv_bool(jstr_is(name, "isupper") ? upper && !lower : jstr_is(name, "islower") ? lower && !upper : all);
	return jx_step(x, s.n / 4);
}

/* find, rfind, index, count */
static int method_find(struct jx *x, struct jstr s, struct jstr name, struct jstr what, struct jval *out)
{
	int64_t count = 0;
	const char *p;

	if (jx_step(x, last_cost(s, what)))
		return x->err->code;
	p = jstr_is(name, "rfind") ? find_last(s, what) : find(s, 0, what);
	if (!jstr_is(name, "count")) {
		*out = jv_int(p ? (int64_t)utf8_count(s.p, (size_t)(p - s.p)) : -1);
		return !p && jstr_is(name, "index") ? jx_fail(x, "index: not in the string") : 0;
	}
	if (!what.n)
		count = (int64_t)utf8_count(s.p, s.n) + 1;
	for (size_t at = 0; what.n && (p = find(s, at, what)); count++)
		at = (size_t)(p - s.p) + what.n;
	*out = jv_int(count);
	return 0;
}

static int method_join(struct jx *x, struct jstr s, const struct jargs *a, struct jval *out)
{
	const struct jlist *l;

	*out = jv_str("", 0);
	if (a->n != 1 || a->nkw)
		return jx_fail(x, "join: one argument is needed");
	if (jv_iterate(x, a->v[0], &l))
		return x->err->code;
	for (size_t i = 0; i < l->n; i++) {
		if (l->v[i].kind != J_STR)
			return jx_fail(x, "join: '%s' where a string is needed", jv_type(l->v[i]));
		if ((i && jv_concat(x, out->s, s, out)) || jv_concat(x, out->s, l->v[i].s, out))
			return x->err->code;
	}
	return 0;
}

static int method_strip(struct jx *x, struct jstr s, int sides, const struct jargs *a, struct jval *out)
{
	struct jstr chars;
	bool given;

	if (args_check(x, a, 1, NULL, "strip") || args_str(x, a, 0, NULL, &chars, &given, "strip") ||
	    jx_step(x, given ? s.n * (chars.n / 8 + 1) / 8 : s.n / 8))
		return x->err->code;
	s = jstr_strip(s, given ? &chars : NULL, sides);
	*out = jv_str(s.p, s.n);
	return 0;
}

/* Those that take one string. */
static int method_one(struct jx *x, struct jstr s, struct jstr name, const struct jargs *a, struct jval *out)
{
	struct jstr arg;
	bool given;

	if (args_check(x, a, 1, NULL, "method of a string") || args_str(x, a, 0, NULL, &arg, &given,
		"method of a string"))
		return x->err->code;
	if (!given)
		return jx_fail(x, "%.*s: one argument is needed", (int)name.n, name.p);
	if (jstr_is(name, "partition") || jstr_is(name, "rpartition"))
		return method_partition(x, s, name.p[0] == 'r', arg, out);
	if (jstr_is(name, "removeprefix") || jstr_is(name, "removesuffix")) {
		bool end = jstr_is(name, "removesuffix"), has = has_affix(s, arg, end);
		*out = jv_str(s.p + (has && !end ? arg.n : 0), s.n - (has ? arg.n : 0));
		return 0;
	}
	return method_find(x, s, name, arg, out);
}

static int method_replace(struct jx *x, struct jstr s, const struct jargs *a, struct jval *out)
{
	struct jstr from, to;
	bool has_from, has_to;
	int64_t count = -1;

	if (args_check(x, a, 3, NULL, "replace") || args_str(x, a, 0, NULL, &from, &has_from, "replace") ||
	    args_str(x, a, 1, NULL, &to, &has_to, "replace") || args_int(x, a, 2, NULL, &count, "replace"))
		return x->err->code;
	if (!has_from || !has_to)
		return jx_fail(x, "replace: two strings are needed");
	return jstr_replace(x, s, from, to, count, out);
}

int jinja_str_method(struct jx *x, struct jstr s, struct jstr name, const struct jargs *a, struct jval *out)
{
	static const struct { const char *name; char how; } cases[] = { { "upper", 'u' }, { "lower", 'l' },
		{ "title", 't' }, { "capitalize", 'c' } };

	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		if (jstr_is(name, cases[i].name))
			return args_check(x, a, 0, NULL, cases[i].name) ? x->err->code : jstr_case(x, s, cases[i].how,
				out);
	if (jstr_is(name, "strip"))
		return method_strip(x, s, STRIP_LEFT | STRIP_RIGHT, a, out);
	if (jstr_is(name, "lstrip") || jstr_is(name, "rstrip"))
		return method_strip(x, s, name.p[0] == 'l' ? STRIP_LEFT : STRIP_RIGHT, a, out);
	if (jstr_is(name, "split") || jstr_is(name, "rsplit"))
		return method_split(x, s, name.p[0] == 'r', a, out);
	if (jstr_is(name, "startswith") || jstr_is(name, "endswith"))
		return method_affix(x, s, name.p[0] == 'e', a, out);
	if (jstr_is(name, "replace"))
		return method_replace(x, s, a, out);
	if (jstr_is(name, "join"))
		return method_join(x, s, a, out);
	if (jstr_is(name, "splitlines"))
		return method_splitlines(x, s, a, out);
	if (name.n > 2 && !memcmp(name.p, "is", 2))
		return args_check(x, a, 0, NULL, "method of a string") ? x->err->code : method_is(x, s, name, out);
	return method_one(x, s, name, a, out);
}
