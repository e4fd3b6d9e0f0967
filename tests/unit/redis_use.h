/* What tests of the Redis backends put and get: items whose bytes follow from their numbers. */
#ifndef DS_TESTS_REDIS_USE_H
#define DS_TESTS_REDIS_USE_H

#include "base/mem.h"
#include "store/store.h"
#include "tests/unit/tap.h"

#define MS ((int64_t)1000000)

static struct ds_err err;

TAP_USED static struct store_key key_of(unsigned i)
{
	struct store_key k = { { 0xab } };

	memcpy(k.b + 4, &i, sizeof i);
	k.b[15] = (uint8_t)(i * 77);
	return k;
}

/* What item i holds. */
TAP_USED static size_t item_size(unsigned i)
{
	static const size_t sizes[] = { 0, 1, 63, 64, 65, 4096, 70000, 1000001, 5 };

	return sizes[i % ARRAY_LEN(sizes)];
}

TAP_USED static uint8_t item_byte(unsigned i, size_t at)
{
	return (uint8_t)(at * 131 + at / 255 + i * 17);
}

/* ---- sessions ---- */

struct use { struct store *s; struct store_session *ss; };

TAP_USED static struct use use(const char *addr, const struct store_options *o)
{
	static const struct store_options none;
	struct use u;

	if (store_open(&u.s, addr, o ? o : &none, &err) || store_begin(&u.ss, u.s, &err))
		tap_bail("%s", err.text);
	return u;
}

TAP_USED static void leave(struct use *u)
{
	store_end(u->ss);
	store_close(u->s);
}

TAP_USED static int put(struct use *u, unsigned i, uint64_t ttl_ns, bool replace, enum store_put_result *how)
{
	struct meta_builder *b = meta_new();
	size_t n = item_size(i), half = n / 2;
	uint8_t *p = malloc(n + 1);
	struct iovec iov[2] = { { p, half }, { p + half, n - half } };
	struct store_put q = { .key = key_of(i), .meta = b, .iov = iov, .iovs = 2, .ttl_ns = ttl_ns,
		.replace = replace };
	int rc;

	for (size_t k = 0; k < n; k++)
		p[k] = item_byte(i, k);
	meta_put_uint(b, "i", i);
	rc = store_put(u->ss, &q, how, &err);
	meta_free(b);
	free(p);
	return rc;
}

struct got { unsigned first; uint8_t *p; size_t n, items, stop, placed; bool right; };

TAP_USED static void *place(void *ctx, size_t i, const struct store_item *item)
{
	struct got *g = ctx;
	uint64_t v = 0;

	g->placed++;
	g->right = g->right && i == g->items && item->size == item_size(g->first + (unsigned)i) &&
		meta_uint(item->meta, "i", &v) == META_OK && v == g->first + i;
	if (i == g->stop)
		return NULL;
	free(g->p);
	g->p = malloc(item->size + 1);
	g->n = item->size;
	return g->p;
}

TAP_USED static bool done(void *ctx, size_t i)
{
	struct got *g = ctx;

	for (size_t k = 0; k < g->n; k++)
		g->right = g->right && g->p[k] == item_byte(g->first + (unsigned)i, k);
	g->items++;
	return true;
}

/* Items first .. first + n: how many came; `right`: each as it was put. */
TAP_USED static int get(struct use *u, unsigned first, size_t n, size_t stop, struct got *g)
{
	struct store_key *keys = malloc((n + 1) * sizeof *keys);
	struct store_sink sink = { g, place, done };
	size_t got;
	int rc;

	*g = (struct got){ .first = first, .stop = stop, .right = true };
	for (size_t i = 0; i < n; i++)
		keys[i] = key_of(first + (unsigned)i);
	rc = store_get(u->ss, keys, n, &sink, &got, &err);
	g->right = g->right && got == g->items;
	free(g->p);
	free(keys);
	return rc;
}

TAP_USED static bool has_all(struct use *u, unsigned first, size_t n, size_t want_prefix, size_t want_here)
{
	struct store_key *keys = malloc((n + 1) * sizeof *keys);
	uint8_t *here = calloc(n + 1, 1);
	size_t prefix = 0, row = 0, count = 0;
	int rc;

	for (size_t i = 0; i < n; i++)
		keys[i] = key_of(first + (unsigned)i);
	rc = store_has(u->ss, keys, n, here, &prefix, &err);
	for (size_t i = 0; i < n; i++)
		count += here[i];
	if (!rc)
		rc = store_has(u->ss, keys, n, NULL, &row, &err);
	if (rc || prefix != want_prefix || row != want_prefix || count != want_here)
		tap_diag("code %d (%s), prefix %zu and %zu, there %zu", rc, rc ? err.text : "", prefix, row, count);
	free(keys);
	free(here);
	return !rc && prefix == want_prefix && row == want_prefix && count == want_here;
}

#endif
