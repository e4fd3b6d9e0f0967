/* Attributes, items and calls: loop.*, namespaces, dicts, lists, slices, functions. */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "model/jinja_impl.h"

/* ---- arguments ---- */

bool args_get(const struct jargs *a, size_t i, const char *name, struct jval *v)
{
	if (i < a->n) {
		*v = a->v[i];
		return true;
	}
	for (size_t k = 0; name && k < a->nkw; k++)
		if (jstr_is(a->kw[k].name, name)) {
			*v = a->kw[k].val;
			return true;
		}
	return false;
}

int args_check(struct jx *x, const struct jargs *a, size_t max, const char *const *names, const char *what)
{
	if (a->n > max)
		return jx_fail(x, "%s: %zu arguments are too many", what, a->n);
	for (size_t k = 0; k < a->nkw; k++) {
		size_t i = 0;
		while (names && names[i] && !jstr_is(a->kw[k].name, names[i]))
			i++;
		if (!names || !names[i] || i < a->n)
			return jx_fail(x, "%s: argument '%.*s' is unknown or given twice", what, (int)a->kw[k].name.n,
				a->kw[k].name.p);
	}
	return 0;
}

int args_str(struct jx *x, const struct jargs *a, size_t i, const char *name, struct jstr *s, bool *given,
	const char *what)
{
	struct jval v = jv_none();

	args_get(a, i, name, &v);
	*given = v.kind != J_NONE;
	if (*given && v.kind != J_STR)
		return jx_fail(x, "%s: '%s' where a string is needed", what, jv_type(v));
	if (*given)
		*s = v.s;
	return 0;
}

int args_int(struct jx *x, const struct jargs *a, size_t i, const char *name, int64_t *out, const char *what)
{
	struct jval v = jv_int(*out);

	args_get(a, i, name, &v);
	if (v.kind != J_INT && v.kind != J_BOOL)
		return jx_fail(x, "%s: '%s' where a whole number is needed", what, jv_type(v));
	*out = v.kind == J_INT ? v.i : v.b;
	return 0;
}

/* ---- attributes ---- */

static int loop_attr(struct jx *x, struct jval v, struct jstr name, struct jval *out)
{
	const struct jloop *l = v.loop;
	int64_t at = (int64_t)l->at, n = (int64_t)l->list->n;
	const struct { const char *name; struct jval val; } known[] = {
		{ "index", jv_int(at + 1) }, { "index0", jv_int(at) }, { "revindex", jv_int(n - at) },
		{ "revindex0", jv_int(n - at - 1) },
		{ "first", jv_bool(at == 0) }, { "last", jv_bool(at == n - 1) }, { "length", jv_int(n) },
		{ "depth", jv_int(1) }, { "depth0", jv_int(0) }, /* they count recursive loops */
		{ "previtem", at ? l->list->v[at - 1] : jv_undef(name) }, { "nextitem", at < n - 1 ?
			l->list->v[at + 1] : jv_undef(name) },
	};
	struct jmethod *m;

	*out = jv_undef(name);
	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (jstr_is(name, known[i].name))
			*out = known[i].val;
	if (!jstr_is(name, "cycle") && !jstr_is(name, "changed"))
		return 0;
	m = jx_alloc(x, sizeof(*m));
	if (!m)
		return x->err->code;
	*m = (struct jmethod){ v, name };
	*out = (struct jval){ .kind = J_METHOD, .method = m };
	return 0;
}

static int undefined(struct jx *x, struct jval v)
{
	return jx_fail(x, "'%.*s' is undefined", (int)(v.s.n < 100 ? v.s.n : 100), v.s.p);
}

/* A method goes before a key of a dict, as in "message.items". */
int jinja_attr(struct jx *x, struct jval v, struct jstr name, struct jval *out)
{
	struct jmethod *m;
	bool found = false;

	if (v.kind == J_UNDEF)
		return undefined(x, v);
	if (v.kind == J_LOOP)
		return loop_attr(x, v, name, out);
	if (jinja_has_method(v, name)) {
		m = jx_alloc(x, sizeof(*m));
		if (!m)
			return x->err->code;
		*m = (struct jmethod){ v, name };
		*out = (struct jval){ .kind = J_METHOD, .method = m };
		return 0;
	}
	*out = jv_undef(name);
	if (v.kind == J_DICT || v.kind == J_NAMESPACE)
		return jdict_get(x, v.dict, jv_str(name.p, name.n), out, &found);
	return 0;
}

/* ---- items and slices ---- */

/* Python's slice.indices: where to begin, how many, how far apart. */
static int slice_bounds(struct jx *x, const struct jval *slice, int64_t n, int64_t *from, int64_t *count, int64_t *step)
{
	int64_t end, low, high;

	*step = slice[2].kind == J_INT ? slice[2].i : 1;
	if (!*step || *step == INT64_MIN)
		return jx_fail(x, "slice step %s", *step ? "too large" : "is zero");
	low = *step < 0 ? -1 : 0;
	high = *step < 0 ? n - 1 : n;
	*from = slice[0].kind == J_INT ? slice[0].i : *step < 0 ? high : low;
	end = slice[1].kind == J_INT ? slice[1].i : *step < 0 ? low - n : high;
	if (slice[0].kind == J_INT && *from < 0)
		*from = *from < -n ? low : *from + n;
	if (end < 0)
		end = end < -n ? low : end + n;
	*from = *from > high ? high : *from;
	end = end > high ? high : end;
	if (*step > 0)
		*count = end > *from ? (end - *from - 1) / *step + 1 : 0;
	else
		*count = *from > end ? (*from - end - 1) / -*step + 1 : 0;
	return 0;
}

static int slice_of(struct jx *x, struct jval v, const struct jval *slice, struct jval *out)
{
	int64_t n, from = 0, count = 0, step = 1;
	const struct jlist *l;
	size_t a, b;

	if (jv_length(x, v, &n) || slice_bounds(x, slice, n, &from, &count, &step))
		return x->err->code;
	if (v.kind == J_STR && step == 1) {
		a = count ? utf8_offset(v.s.p, v.s.n, (size_t)from) : 0;
		b = count ? utf8_offset(v.s.p + a, v.s.n - a, (size_t)count) : 0;
		*out = jv_str(v.s.p + a, b);
		return jx_step(x, v.s.n / 8);
	}
	if (jv_iterate(x, v, &l) || (v.kind == J_LIST && jv_list(x, l->tuple, out)))
		return x->err->code;
	if (v.kind == J_STR)
		*out = jv_str("", 0);
	for (int64_t i = 0; i < count; i++) {
		struct jval item = l->v[from + i * step];
		if (v.kind == J_STR ? jv_concat(x, out->s, item.s, out) : jlist_add(x, out->list, item))
			return x->err->code;
	}
	return 0;
}

static int index_of(struct jx *x, struct jval v, int64_t i, struct jval *out)
{
	int64_t n;
	size_t at, len;

	if (jv_length(x, v, &n))
		return x->err->code;
	if (i < 0)
		i += n;
	*out = jv_undef(jstr_of("the item"));
	if (i < 0 || i >= n)
		return 0;
	if (v.kind == J_LIST) {
		*out = v.list->v[i];
		return 0;
	}
	at = utf8_offset(v.s.p, v.s.n, (size_t)i);
	utf8_get(v.s.p + at, &len);
	*out = jv_str(v.s.p + at, len);
	return jx_step(x, at / 8);
}

int jinja_item(struct jx *x, struct jval v, struct jval key, struct jval *out)
{
	bool found = false;

	if (v.kind == J_UNDEF)
		return undefined(x, v);
	if (key.kind == J_SLICE) {
		if (v.kind != J_STR && v.kind != J_LIST)
			return jx_fail(x, "'%s' cannot be sliced", jv_type(v));
		return slice_of(x, v, key.slice, out);
	}
	if (v.kind == J_DICT || v.kind == J_NAMESPACE) {
		if (key.kind > J_STR)
			return jx_fail(x, "'%s' cannot be a key", jv_type(key));
		if (jdict_get(x, v.dict, key, out, &found))
			return x->err->code;
		if (found)
			return 0;
	}
	if ((v.kind == J_STR || v.kind == J_LIST) && (key.kind == J_INT || key.kind == J_BOOL))
		return index_of(x, v, key.kind == J_INT ? key.i : key.b, out);
	if (key.kind == J_STR)
		return jinja_attr(x, v, key.s, out);
	*out = jv_undef(jstr_of("the item"));
	return 0;
}

/* ---- methods ---- */

static const char *const dict_methods[] = { "items", "keys", "values", "get", "copy" };
static const char *const list_methods[] = { "index", "count", "copy" };
static const char *const str_methods[] = { "split", "rsplit", "strip", "lstrip", "rstrip", "startswith", "endswith",
	"replace", "upper", "lower",
	"title", "capitalize", "join", "find", "rfind", "index", "count", "isdigit", "isspace", "isalpha", "isupper",
	"islower", "splitlines", "removeprefix",
	"removesuffix", "partition", "rpartition" };

bool jinja_has_method(struct jval v, struct jstr name)
{
	const char *const *names = v.kind == J_DICT ? dict_methods : v.kind == J_LIST ? list_methods : str_methods;
	size_t n = v.kind == J_DICT ? ARRAY_LEN(dict_methods) : v.kind == J_LIST ?
		ARRAY_LEN(list_methods) : v.kind == J_STR ?
		ARRAY_LEN(str_methods) : 0;

	for (size_t i = 0; i < n; i++)
		if (jstr_is(name, names[i]))
			return true;
	return false;
}

static int dict_method(struct jx *x, struct jval self, struct jstr name, const struct jargs *a, struct jval *out)
{
	const struct jdict *d = self.dict;
	bool found;

	if (jstr_is(name, "copy")) {
		*out = self; /* nothing changes it */
		return 0;
	}
	if (jstr_is(name, "get")) {
		struct jval key;
		*out = jv_none();
		if (args_check(x, a, 2, NULL, "get"))
			return x->err->code;
		if (!args_get(a, 0, NULL, &key))
			return jx_fail(x, "get: without a key");
		args_get(a, 1, NULL, out);
		return jdict_get(x, d, key, out, &found);
	}
	if (args_check(x, a, 0, NULL, "method of a dict") || jv_list(x, false, out))
		return x->err->code;
	for (size_t i = 0; i < d->n; i++) {
		struct jval item = jstr_is(name, "keys") ? d->v[i].key : d->v[i].val;
		if (jstr_is(name, "items") && (jv_list(x, true, &item) || jlist_add(x, item.list, d->v[i].key) ||
		    jlist_add(x, item.list, d->v[i].val)))
			return x->err->code;
		if (jlist_add(x, out->list, item))
			return x->err->code;
	}
	return 0;
}

static int list_method(struct jx *x, struct jval self, struct jstr name, const struct jargs *a, struct jval *out)
{
	int64_t count = 0;
	bool equal;

	*out = self;
	if (jstr_is(name, "copy"))
		return 0;
	if (a->n != 1 || a->nkw)
		return jx_fail(x, "%.*s: one argument is needed", (int)name.n, name.p);
	for (size_t i = 0; i < self.list->n; i++) {
		if (jv_equal(x, self.list->v[i], a->v[0], &equal))
			return x->err->code;
		if (equal && jstr_is(name, "index")) {
			*out = jv_int((int64_t)i);
			return 0;
		}
		count += equal;
	}
	*out = jv_int(count);
	return jstr_is(name, "index") ? jx_fail(x, "index: not in the list") : 0;
}

static int loop_method(struct jx *x, struct jval self, struct jstr name, const struct jargs *a, struct jval *out)
{
	struct jloop *l = self.loop;
	struct jval list;
	bool equal = false;

	if (jstr_is(name, "cycle")) {
		if (!a->n)
			return jx_fail(x, "cycle: without values");
		*out = a->v[l->at % a->n];
		return 0;
	}
	if (jv_list(x, true, &list))
		return x->err->code;
	for (size_t i = 0; i < a->n; i++)
		if (jlist_add(x, list.list, a->v[i]))
			return x->err->code;
	if (l->changed.kind == J_LIST && jv_equal(x, l->changed, list, &equal))
		return x->err->code;
	l->changed = list;
	*out = jv_bool(!equal);
	return 0;
}

int jinja_method(struct jx *x, struct jval self, struct jstr name, const struct jargs *a, struct jval *out)
{
	switch (self.kind) {
	case J_DICT: return dict_method(x, self, name, a, out);
	case J_LIST: return list_method(x, self, name, a, out);
	case J_LOOP: return loop_method(x, self, name, a, out);
	default:     return jinja_str_method(x, self.s, name, a, out);
	}
}

/* ---- functions ---- */

enum { MAX_RANGE = 100000 }; /* as Jinja's sandbox */

static int call_range(struct jx *x, const struct jargs *a, struct jval *out)
{
	int64_t from = 0, to = 0, step = 1, count;

	if (args_check(x, a, 3, NULL, "range") || args_int(x, a, a->n > 1 ? 1 : 0, NULL, &to, "range") ||
	    (a->n > 1 && args_int(x, a, 0, NULL, &from, "range")) || args_int(x, a, 2, NULL, &step, "range") ||
	jv_list(x, false, out))
		return x->err->code;
	if (!a->n || !step)
		return jx_fail(x, "range: %s", a->n ? "step is zero" : "without arguments");
	if (from > INT64_MAX / 4 || from < -INT64_MAX / 4 || to > INT64_MAX / 4 || to < -INT64_MAX / 4 ||
		step < -INT64_MAX / 4 ||
	    step > INT64_MAX / 4)
		return jx_fail(x, "range: number too large");
	count = step > 0 ? (to - from + step - 1) / step : (from - to - step - 1) / -step;
	if (count > MAX_RANGE)
		return jx_fail(x, "range: over %d numbers", MAX_RANGE);
	for (int64_t i = 0; i < count; i++)
		if (jlist_add(x, out->list, jv_int(from + i * step)))
			return x->err->code;
	return 0;
}

/* namespace(a=1, ...), namespace({...}), dict(a=1, ...) */
static int call_dict(struct jx *x, enum jkind kind, const struct jargs *a, struct jval *out)
{
	*out = (struct jval){ .kind = kind, .dict = jx_alloc(x, sizeof(*out->dict)) };
	if (!out->dict)
		return x->err->code;
	if (a->n > 1 || (a->n && a->v[0].kind != J_DICT))
		return jx_fail(x, "namespace, dict: one dict and names are taken");
	for (size_t i = 0; a->n && i < a->v[0].dict->n; i++)
		if (jdict_set(x, out->dict, a->v[0].dict->v[i].key, a->v[0].dict->v[i].val))
			return x->err->code;
	for (size_t i = 0; i < a->nkw; i++)
		if (jdict_set(x, out->dict, jv_str(a->kw[i].name.p, a->kw[i].name.n), a->kw[i].val))
			return x->err->code;
	return 0;
}

static int call_function(struct jx *x, struct jstr name, const struct jargs *a, struct jval *out)
{
	struct jval text = jv_str("", 0);
	struct jstr s;

	if (jstr_is(name, "range"))
		return call_range(x, a, out);
	if (jstr_is(name, "namespace"))
		return call_dict(x, J_NAMESPACE, a, out);
	if (jstr_is(name, "dict"))
		return call_dict(x, J_DICT, a, out);
	args_get(a, 0, "message", &text);
	if (jv_text(x, text, &s))
		return x->err->code;
	return jx_fail(x, "%.*s", (int)(s.n < 500 ? s.n : 500), s.p); /* raise_exception */
}

int jinja_call(struct jx *x, struct jval f, const struct jargs *a, struct jval *out)
{
	switch (f.kind) {
	case J_FUNC:   return call_function(x, f.s, a, out);
	case J_METHOD: return jinja_method(x, f.method->self, f.method->name, a, out);
	case J_MACRO:  return jinja_call_macro(x, f.macro, a, out);
	case J_UNDEF:  return undefined(x, f);
	default:       return jx_fail(x, "'%s' cannot be called", jv_type(f));
	}
}
