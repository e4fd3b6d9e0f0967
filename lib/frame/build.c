/* Building meta maps: msgpack-c's packer into a buffer of key-value pairs; the writer puts the header in front. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "frame/internal.h"

struct meta_builder {
	struct buf b;
	msgpack_packer pk;
	size_t pairs;               /* of the root map */
	struct { size_t at, n; bool map; } open[META_DEPTH - 1]; /* at: the header's byte */
	int depth;
	bool bad;                   /* used wrongly: keys in arrays, too deep, unbalanced */
	size_t rows_at, rows;       /* header of the "tensors" array while rows may follow, else 0 */
};

static int pack_into(void *to, const char *p, size_t n)
{
	buf_add(to, p, n);
	return 0;
}

struct meta_builder *meta_new(void)
{
	struct meta_builder *b = mem_calloc(1, sizeof *b);

	if (b)
		msgpack_packer_init(&b->pk, &b->b, pack_into);
	return b;
}

void meta_free(struct meta_builder *b)
{
	if (!b)
		return;
	buf_free(&b->b);
	free(b);
}

void meta_reset(struct meta_builder *b)
{
	b->b.len = 0;
	b->b.nomem = false;
	b->pairs = b->rows = b->rows_at = 0;
	b->depth = 0;
	b->bad = false;
}

static void put_key(struct meta_builder *b, const char *key, size_t n)
{
	bool map = b->depth == 0 || b->open[b->depth - 1].map;

	if ((key != NULL) != map)
		b->bad = true;
	if (b->depth)
		b->open[b->depth - 1].n++;
	else
		b->pairs++;
	b->rows_at = 0;
	if (key && msgpack_pack_str(&b->pk, n) == 0)
		msgpack_pack_str_body(&b->pk, key, n);
}

static void begin(struct meta_builder *b, const char *key)
{
	put_key(b, key, key ? strlen(key) : 0);
}

void meta_put_uint(struct meta_builder *b, const char *key, uint64_t v)
{
	begin(b, key);
	msgpack_pack_uint64(&b->pk, v);
}

void meta_put_real(struct meta_builder *b, const char *key, double v)
{
	begin(b, key);
	msgpack_pack_double(&b->pk, v);
}

void meta_put_bool(struct meta_builder *b, const char *key, bool v)
{
	begin(b, key);
	if (v)
		msgpack_pack_true(&b->pk);
	else
		msgpack_pack_false(&b->pk);
}

void meta_put_nil(struct meta_builder *b, const char *key)
{
	begin(b, key);
	msgpack_pack_nil(&b->pk);
}

void meta_put_str(struct meta_builder *b, const char *key, const char *s, size_t n)
{
	if (!utf8_valid(s, n, NULL)) /* no reader would take it */
		b->bad = true;
	begin(b, key);
	msgpack_pack_str(&b->pk, n);
	msgpack_pack_str_body(&b->pk, s, n);
}

void meta_put_cstr(struct meta_builder *b, const char *key, const char *s)
{
	meta_put_str(b, key, s, strlen(s));
}

void meta_put_bin(struct meta_builder *b, const char *key, const void *p, size_t n)
{
	begin(b, key);
	msgpack_pack_bin(&b->pk, n);
	msgpack_pack_bin_body(&b->pk, p, n);
}

static void open_level(struct meta_builder *b, const char *key, bool map)
{
	begin(b, key);
	if (b->depth == META_DEPTH - 1) {
		b->bad = true;
		return;
	}
	b->open[b->depth].at = b->b.len;
	b->open[b->depth].n = 0;
	b->open[b->depth++].map = map;
	buf_add(&b->b, "", 1); /* grown when it closes with more than fifteen elements */
}

void meta_put_map(struct meta_builder *b, const char *key)
{
	open_level(b, key, true);
}

void meta_put_array(struct meta_builder *b, const char *key)
{
	open_level(b, key, false);
}

void meta_put_end(struct meta_builder *b)
{
	size_t at, n;
	bool map, large;
	uint8_t *p;

	if (b->depth == 0 || b->b.nomem) {
		b->bad = true;
		return;
	}
	b->depth--;
	at = b->open[b->depth].at;
	n = b->open[b->depth].n;
	map = b->open[b->depth].map;
	if (n < 16) {
		b->b.p[at] = (char)((map ? 0x80 : 0x90) | n);
		return;
	}
	large = n > 0xffff;
	buf_add(&b->b, "\0\0\0", large ? 4 : 2);
	if (b->b.nomem)
		return;
	p = (uint8_t *)b->b.p + at;
	memmove(p + (large ? 5 : 3), p + 1, b->b.len - at - (large ? 5 : 3));
	p[0] = (uint8_t)((map ? 0xde : 0xdc) + large);
	if (large)
		put_be32(p + 1, (uint32_t)n);
	else
		put_be16(p + 1, (unsigned)n);
}

void meta_put_rest(struct meta_builder *b, struct meta m, const char *const *but)
{
	const msgpack_object *o = m.obj;

	for (uint32_t i = 0; o && o->type == MSGPACK_OBJECT_MAP && i < o->via.map.size; i++) {
		const msgpack_object_str *key = &o->via.map.ptr[i].key.via.str;
		const char *const *skip = but;

		while (*skip && (strlen(*skip) != key->size || memcmp(*skip, key->ptr, key->size) != 0))
			skip++;
		if (*skip)
			continue;
		put_key(b, key->ptr, key->size);
		msgpack_pack_object(&b->pk, o->via.map.ptr[i].val);
	}
}

void meta_put_built(struct meta_builder *b, const struct meta_builder *more)
{
	b->bad = b->bad || b->depth || more->bad || more->depth;
	b->b.nomem = b->b.nomem || more->b.nomem;
	if (more->b.len)
		buf_add(&b->b, more->b.p, more->b.len);
	b->pairs += more->pairs;
	b->rows_at = 0;
}

static void put_dims(struct meta_builder *b, const char *dims, size_t ndim)
{
	meta_put_array(b, NULL);
	for (size_t i = 0; i < ndim; i++) {
		size_t n = strcspn(dims, ",");

		meta_put_str(b, NULL, dims, n);
		dims += n + (dims[n] == ',');
	}
	if (*dims)
		b->bad = true; /* more names than dimensions */
	meta_put_end(b);
}

void meta_put_tensor(struct meta_builder *b, const char *name, enum dtype type, const char *dims, const uint64_t *shape,
	size_t ndim, uint64_t offset, const char *scale)
{
	uint64_t nbytes = dtype_size(type);
	size_t rows_at = b->rows_at;

	if (b->depth || ndim > TENSOR_MAX_DIMS) {
		b->bad = true;
		return;
	}
	if (!rows_at) { /* a header of fixed width, raised with each row */
		begin(b, "tensors");
		rows_at = b->b.len;
		b->rows = 0;
		buf_add(&b->b, "\xdc\0", 3);
	}
	b->open[b->depth].at = rows_at;
	b->open[b->depth++].map = false; /* what follows counts as elements of the array */
	meta_put_array(b, NULL);
	meta_put_cstr(b, NULL, name);
	meta_put_cstr(b, NULL, dtype_name(type));
	put_dims(b, dims, ndim);
	meta_put_array(b, NULL);
	for (size_t i = 0; i < ndim; i++) {
		meta_put_uint(b, NULL, shape[i]);
		if (__builtin_mul_overflow(nbytes, shape[i], &nbytes))
			b->bad = true;
	}
	meta_put_end(b);
	meta_put_uint(b, NULL, offset);
	meta_put_uint(b, NULL, nbytes);
	if (scale && *scale)
		meta_put_cstr(b, NULL, scale);
	else
		meta_put_nil(b, NULL);
	meta_put_end(b);
	b->depth--;
	b->rows_at = rows_at;
	if (++b->rows > 0xffff)
		b->bad = true;
	else if (!b->b.nomem)
		put_be16((uint8_t *)b->b.p + rows_at + 1, (unsigned)b->rows);
}

int meta_built(const struct meta_builder *b, const uint8_t **p, size_t *n, size_t *pairs, struct ds_err *err)
{
	*p = NULL;
	*n = *pairs = 0;
	if (!b)
		return 0;
	if (b->b.nomem)
		return err_nomem(err, b->b.len, "frame meta");
	if (b->bad || b->depth)
		return err_set(err, DS_BUG, "frame meta was built wrongly");
	*p = (const uint8_t *)b->b.p;
	*n = b->b.len;
	*pairs = b->pairs;
	return 0;
}
