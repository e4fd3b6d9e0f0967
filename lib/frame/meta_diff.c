/* Comparing two meta maps. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "frame/internal.h"

enum { MAP_PAIRS = 1 << 22 };

struct walk {
	const struct meta_compare *how;
	struct meta_difference *d;
};

size_t meta_others(struct meta m, const char *const *known)
{
	const msgpack_object *o = m.obj;
	size_t n = 0;

	for (uint32_t i = 0; o && o->type == MSGPACK_OBJECT_MAP && i < o->via.map.size; i++) {
		const msgpack_object_str *key = &o->via.map.ptr[i].key.via.str;
		const char *const *k = known;

		while (*k && (strlen(*k) != key->size || memcmp(*k, key->ptr, key->size) != 0))
			k++;
		n += !*k;
	}
	return n;
}

static void as_text(const msgpack_object *o, char *dst, size_t cap)
{
	struct buf b = { 0 };
	struct jw w;

	dst[0] = 0;
	if (!o)
		return;
	jw_init(&w, &b);
	meta_json_value(&w, o);
	snprintf(dst, cap, "%s", b.p ? b.p : "");
	buf_free(&b);
}

static bool differ(const struct walk *w, const msgpack_object *a, const msgpack_object *b)
{
	as_text(a, w->d->a, sizeof w->d->a);
	as_text(b, w->d->b, sizeof w->d->b);
	return true;
}

static bool is_number(const msgpack_object *o)
{
	return o->type == MSGPACK_OBJECT_POSITIVE_INTEGER || o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER ||
		o->type == MSGPACK_OBJECT_FLOAT32 || o->type == MSGPACK_OBJECT_FLOAT64;
}

static bool is_whole(const msgpack_object *o)
{
	return o->type == MSGPACK_OBJECT_POSITIVE_INTEGER || o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER;
}

static double real_of(const msgpack_object *o)
{
	return o->type == MSGPACK_OBJECT_POSITIVE_INTEGER ? (double)o->via.u64 :
		o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER ? (double)o->via.i64 : o->via.f64;
}

static bool same_number(const struct walk *w, const msgpack_object *a, const msgpack_object *b)
{
	double x = real_of(a), y = real_of(b);

	if (is_whole(a) && is_whole(b))
		return a->type == b->type && a->via.u64 == b->via.u64;
	return x == y || (isnan(x) && isnan(y)) || (w->how->near && w->how->near(w->how->ctx, w->d->path, x, y));
}

static bool same_bytes(const char *p, size_t n, const char *q, size_t m)
{
	return n == m && (!n || memcmp(p, q, n) == 0);
}

static bool value_differs(const struct walk *w, const msgpack_object *a, const msgpack_object *b, size_t path);

static bool array_differs(const struct walk *w, const msgpack_object *a, const msgpack_object *b, size_t path)
{
	char *text = w->d->path;
	uint32_t n = a->via.array.size, m = b->via.array.size;

	for (uint32_t i = 0; i < n && i < m; i++) {
		int put = snprintf(text + path, sizeof w->d->path - path, "[%u]", i);
		size_t next = path + (put > 0 ? (size_t)put : 0);

		if (next >= sizeof w->d->path)
			next = sizeof w->d->path - 1;
		if (value_differs(w, &a->via.array.ptr[i], &b->via.array.ptr[i], next))
			return true;
	}
	text[path] = 0;
	return n != m && differ(w, a, b);
}

static const msgpack_object *find_key(const msgpack_object *map, const msgpack_object_str *key)
{
	for (uint32_t i = 0; i < map->via.map.size; i++) {
		const msgpack_object_kv *kv = &map->via.map.ptr[i];

		if (same_bytes(kv->key.via.str.ptr, kv->key.via.str.size, key->ptr, key->size))
			return &kv->val;
	}
	return NULL;
}

/* Keys of a that b lacks or has otherwise; swapped: a and b have changed places, and both have was looked at. */
static bool keys_differ(const struct walk *w, const msgpack_object *a, const msgpack_object *b, size_t path,
	bool swapped)
{
	char *text = w->d->path;

	if ((uint64_t)a->via.map.size * b->via.map.size > MAP_PAIRS) /* nobody's meta, and no time for it */
		return differ(w, a, b);
	for (uint32_t i = 0; i < a->via.map.size; i++) {
		const msgpack_object_kv *kv = &a->via.map.ptr[i];
		const msgpack_object_str *key = &kv->key.via.str;
		const msgpack_object *other = find_key(b, key);
		int put;
		size_t next;

		text[path] = 0;
		if ((w->how->skip && w->how->skip(text, key->ptr, key->size)) || (swapped && other))
			continue;
		if (find_key(a, key) != &kv->val) /* a key that comes twice: readers take the first */
			continue;
		if (!other && kv->val.type == MSGPACK_OBJECT_NIL)
			continue;
		put = snprintf(text + path, sizeof w->d->path - path, "%s%.*s", path ? "." : "",
			(int)(key->size < 100 ? key->size : 100), key->ptr);
		next = path + (put > 0 ? (size_t)put : 0);
		if (next >= sizeof w->d->path)
			next = sizeof w->d->path - 1;
		if (!other)
			return swapped ? differ(w, NULL, &kv->val) : differ(w, &kv->val, NULL);
		if (value_differs(w, &kv->val, other, next))
			return true;
	}
	text[path] = 0;
	return false;
}

/* Depth is bounded by the walk that let the maps in. */
static bool value_differs(const struct walk *w, const msgpack_object *a, const msgpack_object *b, size_t path)
{
	if (is_number(a) && is_number(b))
		return !same_number(w, a, b) && differ(w, a, b);
	if (a->type != b->type)
		return differ(w, a, b);
	switch (a->type) {
	case MSGPACK_OBJECT_BOOLEAN:
		return a->via.boolean != b->via.boolean && differ(w, a, b);
	case MSGPACK_OBJECT_STR:
	case MSGPACK_OBJECT_BIN: /* the same layout */
		return !same_bytes(a->via.str.ptr, a->via.str.size, b->via.str.ptr, b->via.str.size) &&
			differ(w, a, b);
	case MSGPACK_OBJECT_EXT:
		return !same_bytes(a->via.ext.ptr, a->via.ext.size, b->via.ext.ptr, b->via.ext.size) &&
			differ(w, a, b);
	case MSGPACK_OBJECT_ARRAY:
		return array_differs(w, a, b, path);
	case MSGPACK_OBJECT_MAP:
		return keys_differ(w, a, b, path, false) || keys_differ(w, b, a, path, true);
	default:
		return false;
	}
}

bool meta_differ(struct meta a, struct meta b, const struct meta_compare *how, struct meta_difference *d)
{
	struct walk w = { how, d };

	memset(d, 0, sizeof *d);
	return value_differs(&w, a.obj, b.obj, 0);
}
