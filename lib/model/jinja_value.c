/* Values of the Jinja interpreter, and the memory they live in. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/jinja_impl.h"

/* ---- memory, errors, limits ---- */

struct jchunk {
	struct jchunk *next;
	size_t used, size;
	_Alignas(16) char data[];
};

enum { CHUNK_BYTES = 64 * 1024 };

int jx_fail(struct jx *x, const char *fmt, ...)
{
	char text[700];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return err_set(x->err, DS_DATA, "chat template, line %d: %s", x->line, text);
}

int jx_step(struct jx *x, size_t n)
{
	x->steps += n;
	if (x->steps < n || x->steps > JINJA_MAX_STEPS)
		return jx_fail(x, "over %d steps", JINJA_MAX_STEPS);
	return 0;
}

int jx_enter(struct jx *x)
{
	if (++x->depth > JINJA_MAX_DEPTH)
		return jx_fail(x, "nested over %d deep", JINJA_MAX_DEPTH);
	return jx_step(x, 1);
}

/* n bytes; a chunk made for them has `room`. */
static char *take(struct jx *x, size_t n, size_t room)
{
	struct jchunk *c = x->chunks;
	size_t size;
	char *p;

	if (!c || c->size - c->used < n) {
		size = room > CHUNK_BYTES ? room : CHUNK_BYTES;
		if (size > JINJA_MAX_MEMORY || x->memory + size > JINJA_MAX_MEMORY) {
			jx_fail(x, "over %d MiB of values", JINJA_MAX_MEMORY >> 20);
			return NULL;
		}
		c = malloc(sizeof(*c) + size);
		if (!c) {
			err_nomem(x->err, size, "the chat template");
			return NULL;
		}
		x->memory += size;
		c->size = size;
		c->used = 0;
		c->next = x->chunks;
		x->chunks = c;
	}
	p = c->data + c->used;
	c->used += n;
	return p;
}

void *jx_alloc(struct jx *x, size_t n)
{
	char *p;

	if (x->chunks) { /* strings leave it unaligned */
		size_t up = round_up(x->chunks->used, 16);
		x->chunks->used = up < x->chunks->size ? up : x->chunks->size;
	}
	p = take(x, n ? n : 1, n);
	if (p)
		memset(p, 0, n);
	return p;
}

void jx_free(struct jx *x)
{
	while (x->chunks) {
		struct jchunk *c = x->chunks;
		x->chunks = c->next;
		free(c);
	}
}

int jx_grow(struct jx *x, void *v, size_t n, size_t *cap, size_t size)
{
	void **array = v, *p;
	size_t more, bytes;

	if (n < *cap)
		return 0;
	more = *cap ? *cap * 2 : 4;
	if (!mem_mul(more, size, &bytes))
		return jx_fail(x, "too many values");
	p = jx_alloc(x, bytes);
	if (!p)
		return x->err->code;
	if (n)
		memcpy(p, *array, n * size);
	*array = p;
	*cap = more;
	return 0;
}

int jv_copy(struct jx *x, const char *p, size_t n, struct jval *out)
{
	char *s = take(x, n, n);

	if (!s)
		return x->err->code;
	if (n)
		memcpy(s, p, n);
	*out = jv_str(s, n);
	return jx_step(x, n / 64);
}

/* A string that ends where the arena does grows in place, so that piling up a text in a loop costs what it is long; a
 * chunk made for a string has room for as much again. */
int jv_concat(struct jx *x, struct jstr a, struct jstr b, struct jval *out)
{
	struct jchunk *c = x->chunks;
	char *s;

	if (b.n > JINJA_MAX_MEMORY || a.n > JINJA_MAX_MEMORY)
		return jx_fail(x, "string too long");
	if (c && a.n && a.p + a.n == c->data + c->used && c->size - c->used >= b.n) {
		if (b.n)
			memcpy(c->data + c->used, b.p, b.n);
		c->used += b.n;
		*out = jv_str(a.p, a.n + b.n);
		return jx_step(x, b.n / 64);
	}
	s = take(x, a.n + b.n, 2 * (a.n + b.n));
	if (!s)
		return x->err->code;
	if (a.n)
		memcpy(s, a.p, a.n);
	if (b.n)
		memcpy(s + a.n, b.p, b.n);
	*out = jv_str(s, a.n + b.n);
	return jx_step(x, (a.n + b.n) / 64);
}

/* ---- facts ---- */

bool jstr_is(struct jstr s, const char *text)
{
	return s.n == strlen(text) && !memcmp(s.p, text, s.n);
}

struct jstr jstr_of(const char *text)
{
	return (struct jstr){ text, strlen(text) };
}

const char *jv_type(struct jval v)
{
	static const char *const names[] = { "Undefined", "NoneType", "bool", "int", "float", "str", "list", "dict",
	"Namespace", "function",
		"method", "Macro", "LoopContext", "slice" };

	return v.kind == J_LIST && v.list->tuple ? "tuple" : names[v.kind];
}

bool jv_number(struct jval v, double *f)
{
	if (v.kind == J_BOOL)
		*f = v.b;
	else if (v.kind == J_INT)
		*f = (double)v.i;
	else if (v.kind == J_FLOAT)
		*f = v.f;
	else
		return false;
	return true;
}

bool jv_true(struct jval v)
{
	switch (v.kind) {
	case J_UNDEF: case J_NONE: return false;
	case J_BOOL:  return v.b;
	case J_INT:   return v.i != 0;
	case J_FLOAT: return v.f != 0;
	case J_STR:   return v.s.n != 0;
	case J_LIST:  return v.list->n != 0;
	case J_DICT:  return v.dict->n != 0;
	default:      return true;
	}
}

static int list_equal(struct jx *x, const struct jlist *a, const struct jlist *b, bool *equal)
{
	*equal = a->n == b->n && a->tuple == b->tuple;
	for (size_t i = 0; *equal && i < a->n; i++)
		if (jv_equal(x, a->v[i], b->v[i], equal))
			return x->err->code;
	return 0;
}

static int dict_equal(struct jx *x, const struct jdict *a, const struct jdict *b, bool *equal)
{
	*equal = a->n == b->n;
	for (size_t i = 0; *equal && i < a->n; i++) {
		struct jval other;
		if (jdict_get(x, b, a->v[i].key, &other, equal))
			return x->err->code;
		if (*equal && jv_equal(x, a->v[i].val, other, equal))
			return x->err->code;
	}
	return 0;
}

int jv_equal(struct jx *x, struct jval a, struct jval b, bool *equal)
{
	double fa, fb;
	int rc = jx_enter(x);

	*equal = false;
	if (rc)
		goto out;
	if (a.kind <= J_FLOAT && b.kind <= J_FLOAT && a.kind >= J_BOOL && b.kind >= J_BOOL) {
		if (a.kind != J_FLOAT && b.kind != J_FLOAT)
			*equal = (a.kind == J_INT ? a.i : a.b) == (b.kind == J_INT ? b.i : b.b);
		else
			*equal = jv_number(a, &fa) && jv_number(b, &fb) && fa == fb;
	} else if (a.kind == b.kind) {
		switch (a.kind) {
		case J_UNDEF: case J_NONE: *equal = true; break;
		case J_STR:  *equal = a.s.n == b.s.n && !memcmp(a.s.p, b.s.p, a.s.n); break;
		case J_LIST: rc = list_equal(x, a.list, b.list, equal); break;
		case J_DICT: rc = dict_equal(x, a.dict, b.dict, equal); break;
		case J_NAMESPACE: *equal = a.dict == b.dict; break;
		default:     *equal = a.loop == b.loop;
		}
	}
out:
	x->depth--;
	return rc;
}

static int list_order(struct jx *x, const struct jlist *a, const struct jlist *b, int *order)
{
	size_t n = a->n < b->n ? a->n : b->n;

	*order = (a->n > b->n) - (a->n < b->n);
	for (size_t i = 0; i < n; i++) {
		bool equal;
		if (jv_equal(x, a->v[i], b->v[i], &equal))
			return x->err->code;
		if (!equal)
			return jv_order(x, a->v[i], b->v[i], order);
	}
	return 0;
}

int jv_order(struct jx *x, struct jval a, struct jval b, int *order)
{
	double fa, fb;
	int rc = jx_enter(x);

	if (!rc && a.kind == J_STR && b.kind == J_STR) {
		size_t n = a.s.n < b.s.n ? a.s.n : b.s.n;
		int c = n ? memcmp(a.s.p, b.s.p, n) : 0;
		*order = c ? c : (a.s.n > b.s.n) - (a.s.n < b.s.n);
	} else if (!rc && a.kind == J_INT && b.kind == J_INT) {
		*order = (a.i > b.i) - (a.i < b.i);
	} else if (!rc && jv_number(a, &fa) && jv_number(b, &fb)) {
		*order = (fa > fb) - (fa < fb);
	} else if (!rc && a.kind == J_LIST && b.kind == J_LIST && a.list->tuple == b.list->tuple) {
		rc = list_order(x, a.list, b.list, order);
	} else if (!rc && (a.kind == J_UNDEF || b.kind == J_UNDEF)) {
		struct jstr name = a.kind == J_UNDEF ? a.s : b.s;
		rc = jx_fail(x, "'%.*s' is undefined", (int)name.n, name.p);
	} else if (!rc) {
		rc = jx_fail(x, "'%s' and '%s' have no order", jv_type(a), jv_type(b));
	}
	x->depth--;
	return rc;
}

/* ---- lists and dicts ---- */

int jv_list(struct jx *x, bool tuple, struct jval *out)
{
	struct jlist *l = jx_alloc(x, sizeof(*l));

	if (!l)
		return x->err->code;
	l->tuple = tuple;
	*out = (struct jval){ .kind = J_LIST, .list = l };
	return 0;
}

int jlist_add(struct jx *x, struct jlist *l, struct jval v)
{
	if (jx_step(x, 1) || jx_grow(x, &l->v, l->n, &l->cap, sizeof(*l->v)))
		return x->err->code;
	l->v[l->n++] = v;
	return 0;
}

static int dict_find(struct jx *x, const struct jdict *d, struct jval key, size_t *at)
{
	bool equal = false;

	if (jx_step(x, d->n / 8))
		return x->err->code;
	for (*at = 0; *at < d->n; ++*at) {
		struct jval k = d->v[*at].key;
		if (k.kind == J_STR && key.kind == J_STR)
			equal = k.s.n == key.s.n && !memcmp(k.s.p, key.s.p, k.s.n);
		else if (jv_equal(x, k, key, &equal))
			return x->err->code;
		if (equal)
			break;
	}
	return 0;
}

int jdict_set(struct jx *x, struct jdict *d, struct jval key, struct jval val)
{
	size_t at;

	if (dict_find(x, d, key, &at))
		return x->err->code;
	if (at == d->n) {
		if (jx_grow(x, &d->v, d->n, &d->cap, sizeof(*d->v)))
			return x->err->code;
		d->v[d->n++].key = key;
	}
	d->v[at].val = val;
	return 0;
}

int jdict_get(struct jx *x, const struct jdict *d, struct jval key, struct jval *val, bool *found)
{
	size_t at;

	if (dict_find(x, d, key, &at))
		return x->err->code;
	*found = at < d->n;
	if (*found)
		*val = d->v[at].val;
	return 0;
}

static int object_from_json(struct jx *x, const json_t *j, struct jval *out)
{
	const char *name;
	json_t *item;

	out->kind = J_DICT;
	out->dict = jx_alloc(x, sizeof(*out->dict));
	if (!out->dict)
		return x->err->code;
	json_object_foreach((json_t *)(uintptr_t)j, name, item) {
		struct jentry e = { .key = jv_str(name, strlen(name)) };
		struct jdict *d = out->dict;
		if (jv_from_json(x, item, &e.val) || jx_grow(x, &d->v, d->n, &d->cap, sizeof(*d->v)))
			return x->err->code;
		d->v[d->n++] = e; /* keys of a JSON object differ */
	}
	return 0;
}

static int array_from_json(struct jx *x, const json_t *j, struct jval *out)
{
	size_t i;
	json_t *item;

	if (jv_list(x, false, out))
		return x->err->code;
	json_array_foreach(j, i, item) {
		struct jval v;
		if (jv_from_json(x, item, &v) || jlist_add(x, out->list, v))
			return x->err->code;
	}
	return 0;
}

/* Strings stay where they are: j outlives the rendering. */
int jv_from_json(struct jx *x, const json_t *j, struct jval *out)
{
	int rc = jx_enter(x);

	if (!rc)
		switch (json_typeof(j)) {
		case JSON_OBJECT:  rc = object_from_json(x, j, out); break;
		case JSON_ARRAY:   rc = array_from_json(x, j, out); break;
		case JSON_STRING:  *out = jv_str(json_string_value(j), json_string_length(j)); break;
		case JSON_INTEGER: *out = jv_int(json_integer_value(j)); break;
		case JSON_REAL:    *out = jv_float(json_real_value(j)); break;
		case JSON_TRUE:    *out = jv_bool(true); break;
		case JSON_FALSE:   *out = jv_bool(false); break;
		default:           *out = jv_none();
		}
	x->depth--;
	return rc;
}

/* ---- sequences ---- */

int jv_iterate(struct jx *x, struct jval v, const struct jlist **out)
{
	struct jval list = jv_none();

	if (v.kind == J_LIST) {
		*out = v.list;
		return 0;
	}
	if (v.kind != J_STR && v.kind != J_DICT && v.kind != J_UNDEF)
		return jx_fail(x, "'%s' object is not iterable", jv_type(v));
	if (jv_list(x, false, &list))
		return x->err->code;
	*out = list.list;
	for (size_t i = 0; v.kind == J_DICT && i < v.dict->n; i++)
		if (jlist_add(x, list.list, v.dict->v[i].key))
			return x->err->code;
	for (size_t i = 0, len; v.kind == J_STR && i < v.s.n; i += len) {
		utf8_get(v.s.p + i, &len);
		if (jlist_add(x, list.list, jv_str(v.s.p + i, len)))
			return x->err->code;
	}
	return 0;
}

int jv_length(struct jx *x, struct jval v, int64_t *n)
{
	switch (v.kind) {
	case J_UNDEF: *n = 0; return 0;
	case J_STR:   *n = (int64_t)utf8_count(v.s.p, v.s.n); return jx_step(x, v.s.n / 64);
	case J_LIST:  *n = (int64_t)v.list->n; return 0;
	case J_DICT:  *n = (int64_t)v.dict->n; return 0;
	case J_LOOP:  *n = (int64_t)v.loop->list->n; return 0;
	default:      return jx_fail(x, "object of type '%s' has no length", jv_type(v));
	}
}
