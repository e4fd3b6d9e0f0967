#include "frame/meta.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "frame/internal.h"

struct meta_doc {
	msgpack_zone zone;
	msgpack_object root;
	uint8_t *bytes;
};

int meta_unpack(msgpack_zone *zone, msgpack_object *obj, const uint8_t *p, size_t n, struct ds_err *err)
{
	size_t at = 0;
	int rc = meta_walk(p, n, err);

	if (rc)
		return rc;
	switch (msgpack_unpack((const char *)p, n, &at, zone, obj)) {
	case MSGPACK_UNPACK_SUCCESS:
	case MSGPACK_UNPACK_EXTRA_BYTES:
		return 0;
	case MSGPACK_UNPACK_NOMEM_ERROR:
		return err_nomem(err, n, "frame meta");
	default:
		return err_set(err, DS_DATA, "meta is no msgpack");
	}
}

int meta_parse(struct meta_doc **d, const uint8_t *p, size_t n, struct ds_err *err)
{
	struct meta_doc *doc = mem_calloc(1, sizeof *doc);
	int rc = 0;

	*d = NULL;
	if (!doc || !(doc->bytes = mem_array(n ? n : 1, 1)) || !msgpack_zone_init(&doc->zone, 1024)) {
		rc = err_nomem(err, n, "meta");
		goto out;
	}
	if (n)
		memcpy(doc->bytes, p, n);
	rc = meta_unpack(&doc->zone, &doc->root, doc->bytes, n, err);
	if (rc) {
		msgpack_zone_destroy(&doc->zone);
		goto out;
	}
	*d = doc;
	return 0;
out:
	if (doc)
		free(doc->bytes);
	free(doc);
	return rc;
}

struct meta meta_root(const struct meta_doc *d)
{
	return (struct meta){ &d->root };
}

void meta_doc_free(struct meta_doc *d)
{
	if (!d)
		return;
	msgpack_zone_destroy(&d->zone);
	free(d->bytes);
	free(d);
}

/* ---- finding ---- */

static const msgpack_object *find(struct meta m, const char *key)
{
	const msgpack_object *o = m.obj;
	size_t n = strlen(key);

	if (!o || o->type != MSGPACK_OBJECT_MAP)
		return NULL;
	for (uint32_t i = 0; i < o->via.map.size; i++) {
		const msgpack_object_kv *kv = &o->via.map.ptr[i];

		if (kv->key.via.str.size == n && memcmp(kv->key.via.str.ptr, key, n) == 0)
			return &kv->val;
	}
	return NULL;
}

static const msgpack_object *at(struct meta a, size_t i)
{
	const msgpack_object *o = a.obj;

	if (!o || o->type != MSGPACK_OBJECT_ARRAY || i >= o->via.array.size)
		return NULL;
	return &o->via.array.ptr[i];
}

/* ---- typed reading of one object; NULL and nil are absent ---- */

static bool absent(const msgpack_object *o)
{
	return !o || o->type == MSGPACK_OBJECT_NIL;
}

static enum meta_result as_uint(const msgpack_object *o, uint64_t *v)
{
	if (absent(o))
		return META_ABSENT;
	if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
		return META_TYPE;
	*v = o->via.u64;
	return META_OK;
}

static enum meta_result as_real(const msgpack_object *o, double *v)
{
	double x;

	if (absent(o))
		return META_ABSENT;
	switch (o->type) {
	case MSGPACK_OBJECT_FLOAT32:
	case MSGPACK_OBJECT_FLOAT64:
		x = o->via.f64;
		break;
	case MSGPACK_OBJECT_POSITIVE_INTEGER:
		x = (double)o->via.u64;
		break;
	case MSGPACK_OBJECT_NEGATIVE_INTEGER:
		x = (double)o->via.i64;
		break;
	default:
		return META_TYPE;
	}
	if (isnan(x)) /* would slip through the range checks that follow */
		return META_TYPE;
	*v = x;
	return META_OK;
}

static enum meta_result as_str(const msgpack_object *o, const char **s, size_t *n)
{
	if (absent(o))
		return META_ABSENT;
	if (o->type != MSGPACK_OBJECT_STR)
		return META_TYPE;
	*s = o->via.str.ptr;
	*n = o->via.str.size;
	return META_OK;
}

static enum meta_result as_map(const msgpack_object *o, struct meta *v)
{
	if (absent(o))
		return META_ABSENT;
	if (o->type != MSGPACK_OBJECT_MAP)
		return META_TYPE;
	v->obj = o;
	return META_OK;
}

static enum meta_result as_array(const msgpack_object *o, struct meta *v, size_t *n)
{
	if (absent(o))
		return META_ABSENT;
	if (o->type != MSGPACK_OBJECT_ARRAY)
		return META_TYPE;
	v->obj = o;
	*n = o->via.array.size;
	return META_OK;
}

enum meta_result meta_uint(struct meta m, const char *key, uint64_t *v) { return as_uint(find(m, key), v); }
enum meta_result meta_real(struct meta m, const char *key, double *v) { return as_real(find(m, key), v); }
enum meta_result meta_map(struct meta m, const char *key, struct meta *v) { return as_map(find(m, key), v); }

enum meta_result meta_bool(struct meta m, const char *key, bool *v)
{
	const msgpack_object *o = find(m, key);

	if (absent(o))
		return META_ABSENT;
	if (o->type != MSGPACK_OBJECT_BOOLEAN)
		return META_TYPE;
	*v = o->via.boolean;
	return META_OK;
}

enum meta_result meta_str(struct meta m, const char *key, const char **s, size_t *n)
{
	return as_str(find(m, key), s, n);
}

enum meta_result meta_bin(struct meta m, const char *key, const uint8_t **p, size_t *n)
{
	const msgpack_object *o = find(m, key);

	if (absent(o))
		return META_ABSENT;
	if (o->type != MSGPACK_OBJECT_BIN)
		return META_TYPE;
	*p = (const uint8_t *)o->via.bin.ptr;
	*n = o->via.bin.size;
	return META_OK;
}

enum meta_result meta_cstr(struct meta m, const char *key, char *dst, size_t cap)
{
	const char *s;
	size_t n;
	enum meta_result rc = meta_str(m, key, &s, &n);

	if (rc != META_OK)
		return rc;
	if (n >= cap || memchr(s, 0, n))
		return META_TYPE;
	memcpy(dst, s, n);
	dst[n] = 0;
	return META_OK;
}

enum meta_result meta_array(struct meta m, const char *key, struct meta *v, size_t *n)
{
	return as_array(find(m, key), v, n);
}

enum meta_result meta_at_uint(struct meta a, size_t i, uint64_t *v) { return as_uint(at(a, i), v); }
enum meta_result meta_at_real(struct meta a, size_t i, double *v) { return as_real(at(a, i), v); }
enum meta_result meta_at_str(struct meta a, size_t i, const char **s, size_t *n) { return as_str(at(a, i), s, n); }
enum meta_result meta_at_array(struct meta a, size_t i, struct meta *v, size_t *n) { return as_array(at(a, i), v, n); }

/* ---- as JSON ---- */

static void json_bytes(struct jw *w, uint64_t n)
{
	jw_obj(w);
	jw_key(w, "bytes");
	jw_uint(w, n);
	jw_obj_end(w);
}

static void json_key(struct jw *w, const msgpack_object *key)
{
	char text[256];
	size_t n = key->via.str.size < sizeof text - 1 ? key->via.str.size : sizeof text - 1;

	while (n && n < key->via.str.size && ((uint8_t)key->via.str.ptr[n] & 0xc0) == 0x80)
		n--; /* a long key is cut before a character, not within it */
	memcpy(text, key->via.str.ptr, n);
	text[n] = 0;
	jw_key(w, text);
}

/* A hash has more bits than many JSON readers keep of a number. */
static void json_hash(struct jw *w, uint64_t h)
{
	char text[17];

	snprintf(text, sizeof(text), "%016llx", (unsigned long long)h);
	jw_str(w, text);
}

static bool is_key(const msgpack_object_kv *kv, const char *name)
{
	return kv->key.via.str.size == strlen(name) && memcmp(kv->key.via.str.ptr, name, strlen(name)) == 0;
}

static void json_value(struct jw *w, const msgpack_object *o, bool root);

/* "rows" of a tensor frame: [[stream, first, count], ...], the stream as everywhere in text. */
static void json_rows(struct jw *w, const msgpack_object *o)
{
	jw_arr(w);
	for (uint32_t i = 0; i < o->via.array.size; i++) {
		const msgpack_object *seg = &o->via.array.ptr[i];

		if (seg->type != MSGPACK_OBJECT_ARRAY) {
			json_value(w, seg, false);
			continue;
		}
		jw_arr(w);
		for (uint32_t k = 0; k < seg->via.array.size; k++)
			if (!k && seg->via.array.ptr[k].type == MSGPACK_OBJECT_POSITIVE_INTEGER)
				json_hash(w, seg->via.array.ptr[k].via.u64);
			else
				json_value(w, &seg->via.array.ptr[k], false);
		jw_arr_end(w);
	}
	jw_arr_end(w);
}

/* Depth is bounded by the walk. */
static void json_value(struct jw *w, const msgpack_object *o, bool root)
{
	switch (o->type) {
	case MSGPACK_OBJECT_BOOLEAN: jw_bool(w, o->via.boolean); break;
	case MSGPACK_OBJECT_POSITIVE_INTEGER: jw_uint(w, o->via.u64); break;
	case MSGPACK_OBJECT_NEGATIVE_INTEGER: jw_int(w, o->via.i64); break;
	case MSGPACK_OBJECT_FLOAT32:
	case MSGPACK_OBJECT_FLOAT64: jw_real(w, o->via.f64); break;
	case MSGPACK_OBJECT_STR: jw_strn(w, o->via.str.ptr, o->via.str.size); break;
	case MSGPACK_OBJECT_BIN: json_bytes(w, o->via.bin.size); break;
	case MSGPACK_OBJECT_EXT: json_bytes(w, o->via.ext.size); break;
	case MSGPACK_OBJECT_ARRAY:
		jw_arr(w);
		for (uint32_t i = 0; i < o->via.array.size; i++)
			json_value(w, &o->via.array.ptr[i], false);
		jw_arr_end(w);
		break;
	case MSGPACK_OBJECT_MAP:
		jw_obj(w);
		for (uint32_t i = 0; i < o->via.map.size; i++) {
			const msgpack_object_kv *kv = &o->via.map.ptr[i];

			if (root && is_key(kv, "_"))
				continue;
			json_key(w, &kv->key);
			if (root && is_key(kv, "xxh") && kv->val.type == MSGPACK_OBJECT_POSITIVE_INTEGER)
				json_hash(w, kv->val.via.u64);
			else if (root && is_key(kv, "rows") && kv->val.type == MSGPACK_OBJECT_ARRAY)
				json_rows(w, &kv->val);
			else
				json_value(w, &kv->val, false);
		}
		jw_obj_end(w);
		break;
	default: jw_null(w); break;
	}
}

void meta_json_value(struct jw *w, const msgpack_object *o)
{
	json_value(w, o, false);
}

void meta_json(struct jw *w, struct meta m)
{
	if (m.obj) {
		json_value(w, m.obj, true);
	} else {
		jw_obj(w);
		jw_obj_end(w);
	}
}
