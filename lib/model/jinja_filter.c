/* Filters: what stands behind '|'. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/jinja_impl.h"

typedef int filter_fn(struct jx *x, struct jval v, const struct jargs *a, struct jval *out);

/* "a.b", or a number: the attribute that map, selectattr, sort and others look at. */
static int attribute(struct jx *x, struct jval v, struct jval path, struct jval *out)
{
	struct jstr rest;

	if (path.kind == J_INT)
		return jinja_item(x, v, path, out);
	if (path.kind != J_STR)
		return jx_fail(x, "an attribute's name is needed, not '%s'", jv_type(path));
	*out = v;
	for (rest = path.s; ; ) {
		const char *dot = rest.n ? memchr(rest.p, '.', rest.n) : NULL;
		size_t n = dot ? (size_t)(dot - rest.p) : rest.n;
		if (jx_step(x, 1) || jinja_item(x, *out, jv_str(rest.p, n), out))
			return x->err->code;
		if (!dot)
			return 0;
		rest.p += n + 1;
		rest.n -= n + 1;
	}
}

/* ---- text ---- */

static int filter_trim(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	static const char *const names[] = { "chars", NULL };
	struct jstr s, chars;
	bool given;

	if (args_check(x, a, 1, names, "trim") || jv_text(x, v, &s) || args_str(x, a, 0, "chars", &chars, &given,
		"trim") ||
	    jx_step(x, given ? s.n * (chars.n / 8 + 1) / 8 : s.n / 8))
		return x->err->code;
	s = jstr_strip(s, given ? &chars : NULL, STRIP_LEFT | STRIP_RIGHT);
	*out = jv_str(s.p, s.n);
	return 0;
}

static int change_case(struct jx *x, struct jval v, const struct jargs *a, char how, struct jval *out)
{
	struct jstr s;

	return args_check(x, a, 0, NULL, "filter") || jv_text(x, v, &s) ? x->err->code : jstr_case(x, s, how, out);
}

static int filter_upper(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return change_case(x, v, a, 'u', out);
}
static int filter_lower(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return change_case(x, v, a, 'l', out);
}
static int filter_title(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return change_case(x, v, a, 't', out);
}
static int filter_capitalize(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return change_case(x, v, a, 'c', out);
}

static int filter_string(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	struct jstr s;

	if (args_check(x, a, 0, NULL, "string") || jv_text(x, v, &s))
		return x->err->code;
	*out = jv_str(s.p, s.n);
	return 0;
}

static int filter_replace(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	static const char *const names[] = { "old", "new", "count", NULL };
	struct jval count = jv_none();
	struct jstr s, from, to;
	bool has_from, has_to;

	if (args_check(x, a, 3, names, "replace") || jv_text(x, v, &s) || args_str(x, a, 0, "old", &from, &has_from,
		"replace") ||
	    args_str(x, a, 1, "new", &to, &has_to, "replace"))
		return x->err->code;
	args_get(a, 2, "count", &count);
	if (!has_from || !has_to || (count.kind != J_NONE && count.kind != J_INT))
		return jx_fail(x, "replace: two strings and a number are taken");
	return jstr_replace(x, s, from, to, count.kind == J_INT ? count.i : -1, out);
}

static int filter_indent(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	static const char *const names[] = { "width", "first", "blank", NULL };
	struct jval width = jv_int(4), first = jv_bool(false), blank = jv_bool(false), pad = jv_str("    ", 4);
	struct jstr s;
	size_t from = 0;

	if (args_check(x, a, 3, names, "indent") || jv_text(x, v, &s))
		return x->err->code;
	args_get(a, 0, "width", &width);
	args_get(a, 1, "first", &first);
	args_get(a, 2, "blank", &blank);
	if (width.kind == J_STR)
		pad = width;
	else if (width.kind != J_INT || width.i < 0 || width.i > 64)
		return jx_fail(x, "indent: 'width' is not in 0..64");
	else if (jv_copy(x, "                                                                ", (size_t)width.i, &pad))
		return x->err->code;
	*out = jv_str("", 0);
	for (size_t line = 0; ; line++) {
		const char *nl = s.n > from ? memchr(s.p + from, '\n', s.n - from) : NULL;
		size_t end = nl ? (size_t)(nl - s.p) : s.n;
		bool padded = line ? end > from || jv_true(blank) : jv_true(first);
		if ((padded && jv_concat(x, out->s, pad.s, out)) ||
		    jv_concat(x, out->s, (struct jstr){ s.p + from, end - from + (nl != NULL) }, out) || jx_step(x, 1))
			return x->err->code;
		if (!nl)
			return 0;
		from = end + 1;
	}
}

/* ---- numbers ---- */

/* Texts that are no number give the default. */
static int to_number(struct jx *x, struct jval v, const struct jargs *a, bool real, struct jval *out)
{
	static const char *const names[] = { "default", NULL };
	struct jval other = real ? jv_float(0) : jv_int(0);
	char text[64], *end = text;
	double f;

	if (args_check(x, a, 1, names, real ? "float" : "int"))
		return x->err->code;
	args_get(a, 0, "default", &other);
	*out = other;
	if (v.kind == J_STR) {
		struct jstr s = jstr_strip(v.s, NULL, STRIP_LEFT | STRIP_RIGHT);
		if (!s.n || s.n >= sizeof(text) || memchr(s.p, 'x', s.n) || memchr(s.p, 'X', s.n))
			return 0;
		memcpy(text, s.p, s.n);
		text[s.n] = 0;
		f = strtod(text, &end);
		if (*end)
			return 0;
	} else if (!jv_number(v, &f)) {
		return 0;
	}
	if (real)
		*out = jv_float(f);
	else if (v.kind == J_INT)
		*out = v;
	else if (isfinite(f) && fabs(f) < 9e18)
		*out = jv_int(v.kind == J_STR && !strpbrk(text, ".eE") ? strtoll(text, NULL, 10) : (int64_t)f);
	return 0;
}

static int filter_int(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return to_number(x, v, a, false, out);
}
static int filter_float(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return to_number(x, v, a, true, out);
}

static int filter_abs(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	double f;

	if (args_check(x, a, 0, NULL, "abs"))
		return x->err->code;
	if (!jv_number(v, &f) || (v.kind == J_INT && v.i == INT64_MIN))
		return jx_fail(x, "abs: '%s' has none", jv_type(v));
	*out = v.kind == J_FLOAT ? jv_float(fabs(f)) : v.kind == J_INT ? jv_int(v.i < 0 ? -v.i : v.i) : jv_int(v.b);
	return 0;
}

static int filter_round(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	static const char *const names[] = { "precision", "method", NULL };
	struct jstr method = jstr_of("common");
	int64_t digits = 0;
	double f, scale;
	bool given;

	if (args_check(x, a, 2, names, "round") || args_int(x, a, 0, "precision", &digits, "round") ||
	    args_str(x, a, 1, "method", &method, &given, "round"))
		return x->err->code;
	if (!jv_number(v, &f) || digits < 0 || digits > 15)
		return jx_fail(x, "round: a number and 0..15 digits are taken");
	scale = pow(10, (double)digits);
	f = jstr_is(method, "ceil") ? ceil(f * scale) : jstr_is(method, "floor") ? floor(f * scale) : rint(f * scale);
	*out = v.kind == J_INT && jstr_is(method, "common") ? v : jv_float(f / scale);
	return 0;
}

/* ---- sequences ---- */

static int filter_length(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	int64_t n;

	if (args_check(x, a, 0, NULL, "length") || jv_length(x, v, &n))
		return x->err->code;
	*out = jv_int(n);
	return 0;
}

static int filter_list(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	const struct jlist *l;

	if (args_check(x, a, 0, NULL, "list") || jv_iterate(x, v, &l) || jv_list(x, false, out))
		return x->err->code;
	for (size_t i = 0; i < l->n; i++)
		if (jlist_add(x, out->list, l->v[i]))
			return x->err->code;
	return 0;
}

static int end_of(struct jx *x, struct jval v, bool last, struct jval *out)
{
	const struct jlist *l;

	if (jv_iterate(x, v, &l))
		return x->err->code;
	*out = l->n ? l->v[last ? l->n - 1 : 0] : jv_undef(jstr_of("the item"));
	return 0;
}

static int filter_first(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return args_check(x, a, 0, NULL, "first") ? x->err->code : end_of(x, v, false, out);
}

static int filter_last(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return args_check(x, a, 0, NULL, "last") ? x->err->code : end_of(x, v, true, out);
}

static int filter_reverse(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	static const struct jargs none;
	struct jval back[3] = { jv_none(), jv_none(), jv_int(-1) };

	if (args_check(x, a, 0, NULL, "reverse"))
		return x->err->code;
	if (v.kind != J_STR && v.kind != J_LIST && filter_list(x, v, &none, &v))
		return x->err->code;
	return jinja_item(x, v, (struct jval){ .kind = J_SLICE, .slice = back }, out);
}

static int filter_join(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	static const char *const names[] = { "d", "attribute", NULL };
	struct jval sep = jv_str("", 0), attr = jv_none();
	const struct jlist *l;
	struct jstr s, d;

	if (args_check(x, a, 2, names, "join"))
		return x->err->code;
	args_get(a, 0, "d", &sep);
	args_get(a, 1, "attribute", &attr);
	*out = jv_str("", 0);
	if (jv_text(x, sep, &d) || jv_iterate(x, v, &l))
		return x->err->code;
	for (size_t i = 0; i < l->n; i++) {
		struct jval item = l->v[i];
		if ((attr.kind != J_NONE && attribute(x, item, attr, &item)) || jv_text(x, item, &s) ||
			(i && jv_concat(x, out->s, d, out)) ||
		    jv_concat(x, out->s, s, out))
			return x->err->code;
	}
	return 0;
}

static int filter_items(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	if (args_check(x, a, 0, NULL, "items"))
		return x->err->code;
	if (v.kind == J_UNDEF)
		return jv_list(x, false, out);
	if (v.kind != J_DICT)
		return jx_fail(x, "items: '%s' has none", jv_type(v));
	return jinja_method(x, v, jstr_of("items"), a, out);
}

/* Stable insertion by merging halves; order of keys[i] decides, items move with them. */
static int merge_sort(struct jx *x, struct jval *keys, struct jval *items, struct jval *spare, size_t n, bool reverse)
{
	size_t half = n / 2, a = 0, b = half, k = 0;
	int order;

	if (n < 2)
		return 0;
	if (merge_sort(x, keys, items, spare, half, reverse) || merge_sort(x, keys + half, items + half, spare,
		n - half, reverse))
		return x->err->code;
	for (; k < n; k++) {
		bool right = a == half;
		if (a < half && b < n) {
			if (jv_order(x, keys[a], keys[b], &order))
				return x->err->code;
			right = reverse ? order < 0 : order > 0;
		}
		spare[2 * k] = keys[right ? b : a];
		spare[2 * k + 1] = items[right ? b++ : a++];
	}
	for (k = 0; k < n; k++) {
		keys[k] = spare[2 * k];
		items[k] = spare[2 * k + 1];
	}
	return 0;
}

/* By attr (none: the item itself), strings by their lower case unless `exact`. */
static int sorted(struct jx *x, const struct jlist *l, struct jval attr, bool exact, bool reverse, struct jval *out)
{
	struct jval *keys = jx_alloc(x, l->n * sizeof(*keys)), *spare = jx_alloc(x, 2 * l->n * sizeof(*spare));

	if (!keys || !spare || jv_list(x, false, out))
		return x->err->code;
	for (size_t i = 0; i < l->n; i++) {
		keys[i] = l->v[i];
		if ((attr.kind != J_NONE && attribute(x, l->v[i], attr, &keys[i])) ||
		    (!exact && keys[i].kind == J_STR && jstr_case(x, keys[i].s, 'l', &keys[i])) ||
		jlist_add(x, out->list, l->v[i]))
			return x->err->code;
	}
	return merge_sort(x, keys, out->list->v, spare, l->n, reverse);
}

static int filter_sort(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	static const char *const names[] = { "reverse", "case_sensitive", "attribute", NULL };
	struct jval reverse = jv_bool(false), exact = jv_bool(false), attr = jv_none();
	const struct jlist *l;

	if (args_check(x, a, 3, names, "sort") || jv_iterate(x, v, &l))
		return x->err->code;
	args_get(a, 0, "reverse", &reverse);
	args_get(a, 1, "case_sensitive", &exact);
	args_get(a, 2, "attribute", &attr);
	return sorted(x, l, attr, jv_true(exact), jv_true(reverse), out);
}

static int filter_dictsort(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	static const char *const names[] = { "case_sensitive", "by", "reverse", NULL };
	struct jval exact = jv_bool(false), by = jv_str("key", 3), reverse = jv_bool(false), items;
	static const struct jargs none;

	if (args_check(x, a, 3, names, "dictsort") || filter_items(x, v, &none, &items))
		return x->err->code;
	args_get(a, 0, "case_sensitive", &exact);
	args_get(a, 1, "by", &by);
	args_get(a, 2, "reverse", &reverse);
	return sorted(x, items.list, jv_int(by.kind == J_STR && jstr_is(by.s, "value")), jv_true(exact),
		jv_true(reverse), out);
}

static int filter_unique(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	const struct jlist *l;

	if (args_check(x, a, 0, NULL, "unique") || jv_iterate(x, v, &l) || jv_list(x, false, out))
		return x->err->code;
	for (size_t i = 0; i < l->n; i++) {
		bool seen = false;
		for (size_t k = 0; k < out->list->n && !seen; k++)
			if (jv_equal(x, out->list->v[k], l->v[i], &seen))
				return x->err->code;
		if (!seen && jlist_add(x, out->list, l->v[i]))
			return x->err->code;
	}
	return 0;
}

static int extreme(struct jx *x, struct jval v, const struct jargs *a, int sign, struct jval *out)
{
	const struct jlist *l;
	int order;

	if (args_check(x, a, 0, NULL, "min, max") || jv_iterate(x, v, &l))
		return x->err->code;
	*out = l->n ? l->v[0] : jv_undef(jstr_of("the item"));
	for (size_t i = 1; i < l->n; i++) {
		if (jv_order(x, l->v[i], *out, &order))
			return x->err->code;
		if (order * sign > 0)
			*out = l->v[i];
	}
	return 0;
}

static int filter_min(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return extreme(x, v, a, -1, out);
}
static int filter_max(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return extreme(x, v, a, 1, out);
}

static int filter_sum(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	static const char *const names[] = { "attribute", NULL };
	struct jval attr = jv_none();
	const struct jlist *l;
	double total = 0, f;
	bool real = false;

	if (args_check(x, a, 1, names, "sum") || jv_iterate(x, v, &l))
		return x->err->code;
	args_get(a, 0, "attribute", &attr);
	for (size_t i = 0; i < l->n; i++) {
		struct jval item = l->v[i];
		if (attr.kind != J_NONE && attribute(x, item, attr, &item))
			return x->err->code;
		if (!jv_number(item, &f))
			return jx_fail(x, "sum: '%s' is no number", jv_type(item));
		real |= item.kind == J_FLOAT;
		total += f;
	}
	if (!real && fabs(total) > 9007199254740992.0)
		return jx_fail(x, "sum: number too large");
	*out = real ? jv_float(total) : jv_int((int64_t)total);
	return 0;
}

/* ---- select, reject, map ---- */

/* The arguments from `skip` on. */
static struct jargs rest_of(const struct jargs *a, size_t skip)
{
	return (struct jargs){ .v = a->v + skip, .n = a->n - skip, .kw = a->kw, .nkw = a->nkw };
}

static int choose(struct jx *x, struct jval v, const struct jargs *a, bool by_attr, bool want, struct jval *out)
{
	size_t skip = by_attr ? 1 : 0;
	const struct jlist *l;
	struct jargs rest;

	if (jv_iterate(x, v, &l) || jv_list(x, false, out))
		return x->err->code;
	if (a->n < skip || a->nkw || (a->n > skip && a->v[skip].kind != J_STR))
		return jx_fail(x, "select, reject: %s", by_attr ?
			"an attribute and a test's name are needed" : "a test's name is needed");
	if (a->n > skip)
		rest = rest_of(a, skip + 1);
	for (size_t i = 0; i < l->n; i++) {
		struct jval item = l->v[i];
		bool yes;
		if (by_attr && attribute(x, item, a->v[0], &item))
			return x->err->code;
		yes = jv_true(item);
		if (a->n > skip && jinja_test(x, a->v[skip].s, item, &rest, &yes))
			return x->err->code;
		if (yes == want && jlist_add(x, out->list, l->v[i]))
			return x->err->code;
	}
	return 0;
}

static int filter_select(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return choose(x, v, a, false, true, out);
}
static int filter_reject(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return choose(x, v, a, false, false, out);
}
static int filter_selectattr(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return choose(x, v, a, true, true, out);
}
static int filter_rejectattr(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return choose(x, v, a, true, false, out);
}

/* map(attribute="a", default=...), map("filter", arguments...) */
static int filter_map(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	struct jval attr = jv_none(), other = jv_none();
	bool by_attr = args_get(a, SIZE_MAX, "attribute", &attr), has_other = args_get(a, SIZE_MAX, "default", &other);
	const struct jlist *l;
	struct jargs rest;

	if (jv_iterate(x, v, &l) || jv_list(x, false, out))
		return x->err->code;
	if (by_attr ? a->n != 0 : (!a->n || a->v[0].kind != J_STR))
		return jx_fail(x, "map: an attribute or a filter's name is needed");
	if (!by_attr)
		rest = rest_of(a, 1);
	for (size_t i = 0; i < l->n; i++) {
		struct jval item = l->v[i];
		if (by_attr ? attribute(x, item, attr, &item) : jinja_filter(x, a->v[0].s, item, &rest, &item))
			return x->err->code;
		if (by_attr && has_other && item.kind == J_UNDEF)
			item = other;
		if (jlist_add(x, out->list, item))
			return x->err->code;
	}
	return 0;
}

static int filter_default(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	static const char *const names[] = { "default_value", "boolean", NULL };
	struct jval other = jv_str("", 0), boolean = jv_bool(false);

	if (args_check(x, a, 2, names, "default"))
		return x->err->code;
	args_get(a, 0, "default_value", &other);
	args_get(a, 1, "boolean", &boolean);
	*out = v.kind == J_UNDEF || (jv_true(boolean) && !jv_true(v)) ? other : v;
	return 0;
}

static int filter_tojson(struct jx *x, struct jval v, const struct jargs *a, struct jval *out)
{
	return jv_tojson(x, a, v, out);
}

static const struct { const char *name; filter_fn *fn; } filters[] = {
	{ "abs", filter_abs }, { "capitalize", filter_capitalize }, { "count", filter_length },
	{ "d", filter_default }, { "default", filter_default },
	{ "dictsort", filter_dictsort }, { "first", filter_first }, { "float", filter_float },
	{ "indent", filter_indent }, { "int", filter_int },
	{ "items", filter_items }, { "join", filter_join }, { "last", filter_last }, { "length", filter_length },
	{ "list", filter_list },
	{ "lower", filter_lower }, { "map", filter_map }, { "max", filter_max }, { "min", filter_min },
	{ "reject", filter_reject },
	{ "rejectattr", filter_rejectattr }, { "replace", filter_replace }, { "reverse", filter_reverse },
	{ "round", filter_round },
	{ "safe", filter_string }, { "select", filter_select }, { "selectattr", filter_selectattr },
	{ "sort", filter_sort },
	{ "string", filter_string }, { "sum", filter_sum }, { "title", filter_title }, { "tojson", filter_tojson },
	{ "trim", filter_trim },
	{ "unique", filter_unique }, { "upper", filter_upper },
};

int jinja_filter(struct jx *x, struct jstr name, struct jval v, const struct jargs *a, struct jval *out)
{
	int rc = jx_enter(x);

	if (!rc) {
		size_t i = 0;
		while (i < ARRAY_LEN(filters) && !jstr_is(name, filters[i].name))
			i++;
		rc = i < ARRAY_LEN(filters) ? filters[i].fn(x, v, a, out) :
			jx_fail(x, "unknown filter '%.*s'", (int)(name.n < 60 ? name.n : 60), name.p);
	}
	x->depth--;
	return rc;
}
