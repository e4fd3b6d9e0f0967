/* What tests of the client of ds-kvstore put and get back. */
#ifndef DS_TESTS_REMOTE_H
#define DS_TESTS_REMOTE_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "net/addr.h"
#include "store/store_impl.h"
#include "tap.h"

enum { ITEMS = 8, BIG = 4497408 };
static const size_t sizes[ITEMS] = { 64, 0, 1, 63, 65, 100000, 1 << 20, BIG };
TAP_USED static char dir[] = "/tmp/test_remote.XXXXXX"; /* made by main */

/* ---- what is put and comes back ---- */

TAP_USED static struct store_key key_of(uint64_t i)
{
	struct store_key k = { { 0 } };

	i++;
	memcpy(k.b, &i, sizeof i);
	k.b[15] = (uint8_t)(i * 37);
	return k;
}

TAP_USED static void fill(uint8_t *p, size_t n, uint64_t i)
{
	for (size_t k = 0; k < n; k++)
		p[k] = (uint8_t)(k * 31 + (k >> 8) * 7 + i * 101);
}

struct catch {
	uint8_t *p[ITEMS];
	size_t placed, done, stop_at, refuse_at;
	bool meta_right;
};

TAP_USED static void *place(void *ctx, size_t i, const struct store_item *item)
{
	struct catch *c = ctx;
	uint64_t n = 0;

	c->placed++;
	c->meta_right = c->meta_right && meta_uint(item->meta, "n", &n) == META_OK && n == i;
	if (i == c->refuse_at)
		return NULL;
	free(c->p[i]);
	c->p[i] = malloc(item->size + 64);
	memset(c->p[i], 0xee, item->size + 64);
	return c->p[i];
}

TAP_USED static bool done(void *ctx, size_t i)
{
	struct catch *c = ctx;

	c->done++;
	return i != c->stop_at;
}

TAP_USED static void catch_free(struct catch *c)
{
	for (size_t i = 0; i < ITEMS; i++)
		free(c->p[i]);
}

/* The first n items are what was put, and nothing was written behind them. */
TAP_USED static bool right(const struct catch *c, size_t n)
{
	uint8_t *want = malloc(BIG + 64);
	bool good = c->meta_right;

	for (size_t i = 0; i < n; i++) {
		fill(want, sizes[i], i);
		memset(want + sizes[i], 0xee, 64);
		good = good && c->p[i] && memcmp(want, c->p[i], sizes[i] + 64) == 0;
	}
	free(want);
	return good;
}

TAP_USED static struct store *open_at(const char *addr, struct store_session **ss)
{
	const struct store_options o = { 0 };
	struct store *s;
	struct ds_err err;

	if (store_open(&s, addr, &o, &err) || store_begin(ss, s, &err))
		tap_bail("%s", err.text);
	return s;
}

TAP_USED static int put(struct store_session *ss, uint64_t i, size_t size, enum store_put_result *how,
	struct ds_err *err)
{
	struct meta_builder *b = meta_new();
	uint8_t *p = malloc(size + 1);
	struct iovec iov[2] = { { p, size / 3 }, { p + size / 3, size - size / 3 } };
	struct store_put q = { .key = key_of(i), .meta = b, .iov = iov, .iovs = 2 };
	int rc;

	meta_put_uint(b, "n", i);
	fill(p, size, i);
	rc = store_put(ss, &q, how, err);
	free(p);
	meta_free(b);
	return rc;
}

#endif
