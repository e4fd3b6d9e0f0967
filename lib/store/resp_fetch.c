/* GET over a store of files: the value is read where it lies, front and payload at once, or is in memory already. */
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/time.h"
#include "base/xxh3.h"
#include "store/resp_impl.h"
#include "store/store_impl.h"

enum fetched { VALUE, NO_VALUE, NOT_THIS_WAY, NO_MEMORY };

struct fetch {
	struct resp_conn *c;
	struct resp_text name;
	struct store_key key;
	struct store_ref ref;
	struct store_item item;
	struct store_buffer b;
	const uint8_t *data;   /* [item.size] */
};

/* Where the disk has to be waited for, another worker takes this one's place. */
static bool read_all(struct fetch *g, uint8_t *data)
{
	struct iovec iov[2] = { { g->c->small, g->ref.head_bytes }, { data, g->ref.data_bytes } };
	const ssize_t want = (ssize_t)g->ref.head_bytes + (ssize_t)g->ref.data_bytes;
	ssize_t n = preadv2(g->ref.fd, iov, 2, (off_t)g->ref.offset, RWF_NOWAIT);

	if (n == want)
		return true;
	resp_stall(g->c, true);
	n = preadv(g->ref.fd, iov, 2, (off_t)g->ref.offset);
	resp_stall(g->c, false);
	return n == want;
}

/* The front in c->small, and what it says of the value. */
static enum fetched judge(struct fetch *g, const uint8_t *data)
{
	struct frame f;
	struct ds_err err;
	const uint8_t *p;
	size_t n;

	if (frame_parse(g->c->parser, g->c->small, g->ref.head_bytes, &f, &err) || f.data_len != g->ref.data_bytes ||
		store_item_get(&f, &g->item, &err) || !store_key_equal(&g->item.key, &g->key) || g->item.zstd ||
		g->item.planes)
		return NOT_THIS_WAY; /* the store sees to what is wrong, deleted, or compressed */
	if (store_item_expired(&g->item, (uint64_t)time_wall_ns()))
		return NO_VALUE;
	if (meta_bin(g->item.meta, "name", &p, &n) != META_OK || n != g->name.n || (n && memcmp(p, g->name.p,
		n) != 0)) {
		g->c->front->collisions++;
		return NO_VALUE;
	}
	if (g->item.size && xxh3(data, g->ref.data_bytes) != g->item.xxh)
		return NOT_THIS_WAY;
	g->data = data;
	return VALUE;
}

static enum fetched from_file(struct fetch *g)
{
	struct resp_conn *c = g->c;
	uint8_t *data = c->small + g->ref.head_bytes;

	if (g->ref.head_bytes > RESP_SMALL || g->ref.head_bytes < FRAME_HEAD_BYTES + FRAME_BIN_BYTES)
		return NOT_THIS_WAY;
	if ((uint64_t)g->ref.head_bytes + g->ref.data_bytes > RESP_SMALL) {
		if (!resp_take(c, g->ref.data_bytes, &g->b))
			return NO_MEMORY;
		data = g->b.p;
	}
	return read_all(g, data) ? judge(g, data) : NOT_THIS_WAY;
}

/* ---- in memory ---- */

/* The item is still there as it was: nobody has made its head that of a deleted one. */
static bool same_head(const struct fetch *g, const struct resp_cached *e)
{
	uint8_t head[FRAME_HEAD_BYTES];

	return pread(g->ref.fd, head, sizeof head, (off_t)g->ref.offset) == sizeof head &&
		memcmp(head, e->head, sizeof head) == 0;
}

static enum fetched from_memory(struct fetch *g, struct resp_cached **e)
{
	struct resp_cache *k = g->c->front->cache;
	bool over;

	*e = k ? resp_cache_get(k, g->ref.segment, g->ref.offset) : NULL;
	if (!*e)
		return NOT_THIS_WAY;
	over = (*e)->expires_ns && (*e)->expires_ns <= (uint64_t)time_wall_ns();
	if (!over && (*e)->name_n == g->name.n && (!g->name.n || memcmp((*e)->name, g->name.p, g->name.n) == 0) &&
		same_head(g, *e))
		return VALUE;
	resp_cache_done(k, *e);
	*e = NULL;
	return NOT_THIS_WAY; /* the file will say why */
}

static void keep(struct fetch *g)
{
	struct resp_cache *k = g->c->front->cache;
	struct resp_cached *e;

	if (!k || !g->b.p || !resp_cache_wants(k, g->ref.segment, g->ref.offset, g->b.cap))
		return;
	e = malloc(sizeof *e + g->name.n);
	if (!e)
		return;
	*e = (struct resp_cached){ .segment = g->ref.segment, .offset = g->ref.offset, .size = g->item.size,
		.expires_ns = g->item.expires_ns, .name_n = g->name.n, .b = g->b };
	memcpy(e->head, g->c->small, sizeof e->head);
	if (g->name.n)
		memcpy(e->name, g->name.p, g->name.n);
	g->b = (struct store_buffer){ NULL, 0 };
	resp_cache_put(k, e);
}

/* ---- GET ---- */

bool resp_fetch(struct resp_conn *c, struct resp_text name, int *rc, struct ds_err *err)
{
	struct fetch g = { .c = c, .name = name, .key = resp_key(name) };
	const struct store_ops *ops = c->front->store->ops;
	struct resp_cached *e = NULL;
	struct store_ref held;
	enum fetched how;

	*rc = 0;
	if (ops->find(c->ss, &g.key, &g.ref, err)) {
		if (err->code == DS_NO)
			resp_nil(c);
		else
			resp_store_error(c, err);
		return true;
	}
	how = from_memory(&g, &e);
	if (!e)
		how = from_file(&g);
	held = g.ref;
	ops->release(c->ss, &held);
	if (how == VALUE)
		*rc = e ? resp_send_bytes(c, e->b.p, e->size, err) : resp_send_bytes(c, g.data, g.item.size, err);
	else if (how == NO_VALUE)
		resp_nil(c);
	else if (how == NO_MEMORY)
		resp_error(c, "TRYAGAIN too many values are on their way");
	if (e)
		resp_cache_done(c->front->cache, e);
	else if (how == VALUE && !*rc)
		keep(&g);
	store_pool_give(c->front->pool, &g.b);
	return how != NOT_THIS_WAY;
}
