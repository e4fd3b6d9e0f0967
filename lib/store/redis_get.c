#include <string.h>
#include <stdlib.h>

#include "base/time.h"
#include "base/xxh3.h"
#include "store/redis_impl.h"

/*
 * Items are asked for ahead, so that the next ones are on their way while the caller takes one; how many depends on
 * their size, which is that of the one before.
 */
enum {
	AHEAD_LEAST = 2, AHEAD_MOST = 64, AHEAD_BYTES = 16 << 20,
	PIECE = 256 << 10, /* is hashed while it is in the processor's caches */
	FRONT_LEAST = FRAME_HEAD_BYTES + FRAME_BIN_BYTES,
	FRONT_MOST = FRONT_LEAST + STORE_META_MAX,
};

/* GOT_BAD: not what was put, to be deleted. */
enum got { GOT_ITEM, GOT_LAST, GOT_NOTHING, GOT_BAD, GOT_REDIRECTED, GOT_UNWANTED };

struct get {
	struct redis_session *ss;
	const struct store_key *keys;
	size_t n, at, sent;                     /* [at, sent) are on their way */
	const struct store_sink *sink;
	struct redis_node *nodes[AHEAD_MOST];   /* who was asked for item i: [i % AHEAD_MOST] */
	size_t ahead;
	bool placed;                            /* item `at` has memory: it cannot be asked for again */
	int lost;
};

/* ---- one item ---- */

/* The front of a value of len bytes into ss->front; *n: its bytes, 0: it is none of ours.  *took: bytes read. */
static int read_front(struct redis_session *ss, struct redis_node *node, size_t len, size_t *n, size_t *took,
	struct ds_err *err)
{
	int rc;

	*n = *took = 0;
	if (len < FRONT_LEAST)
		return 0;
	if (!ss->front && !(ss->front = mem_array(FRONT_MOST, 1)))
		return err_nomem(err, FRONT_MOST, "the front of an item");
	rc = resp_bytes(&node->r, ss->front, FRAME_HEAD_BYTES, err);
	if (rc)
		return rc;
	*took = FRAME_HEAD_BYTES;
	*n = frame_front_bytes(ss->front);
	if (*n < FRONT_LEAST || *n > FRONT_MOST || *n > len) {
		*n = 0;
		return 0;
	}
	rc = resp_bytes(&node->r, ss->front + FRAME_HEAD_BYTES, *n - FRAME_HEAD_BYTES, err);
	*took = *n;
	return rc;
}

/* Whether the front [n] of a value of len bytes is that of the item that was asked for. */
static enum got judge(struct get *g, size_t n, size_t len, struct store_item *item)
{
	struct redis_session *ss = g->ss;
	struct ds_err why;
	struct frame f;

	if (!n || frame_parse(ss->parser, ss->front, n, &f, &why) || f.data_len != len - n ||
		store_item_get(&f, item, &why) || !store_key_equal(&item->key, &g->keys[g->at]))
		return GOT_BAD;
	if (store_item_expired(item, (uint64_t)time_wall_ns())) {
		ss->s->expired++;
		return GOT_NOTHING;
	}
	/* Compressed ones are of a store that is none of ours; this one is not to decide what becomes of them. */
	return item->zstd || item->planes || item->size > ss->base.store->o.max_frame ? GOT_NOTHING : GOT_ITEM;
}

static int read_payload(struct redis_node *node, const struct store_item *item, uint8_t *dst, bool *right,
	struct ds_err *err)
{
	uint8_t pad[FRAME_ALIGN];
	struct xxh3_state hash;
	int rc = 0;

	xxh3_begin(&hash);
	for (size_t done = 0, got; !rc && done < item->size; done += got) {
		size_t want = item->size - done < PIECE ? (size_t)item->size - done : PIECE;

		rc = resp_some(&node->r, dst + done, want, &got, err);
		if (!rc)
			xxh3_add(&hash, dst + done, got);
	}
	if (!rc)
		rc = resp_bytes(&node->r, pad, item->stored - (size_t)item->size, err);
	if (rc)
		return rc;
	xxh3_add(&hash, pad, item->stored - (size_t)item->size);
	*right = !item->size || xxh3_end(&hash) == item->xxh;
	return 0;
}

/* A value of len bytes, which follow. */
static int read_item(struct get *g, struct redis_node *node, size_t len, enum got *got, struct ds_err *err)
{
	struct redis *s = g->ss->s;
	struct store_item item;
	size_t front, took;
	uint8_t *dst = NULL;
	bool right = true;
	int rc = read_front(g->ss, node, len, &front, &took, err);

	if (rc)
		return rc;
	*got = judge(g, front, len, &item);
	if (*got == GOT_ITEM) {
		dst = g->sink->place(g->sink->ctx, g->at, &item);
		g->placed = dst != NULL;
		if (!dst)
			*got = GOT_UNWANTED;
	}
	if (dst)
		rc = read_payload(node, &item, dst, &right, err);
	else
		rc = resp_skip(&node->r, len - took, err);
	if (!rc)
		rc = resp_crlf(&node->r, err);
	if (rc)
		return rc;
	if (!right) {
		*got = GOT_BAD;
	} else if (dst) {
		s->hits++;
		s->hit_bytes += item.size;
		g->placed = false;
		g->ahead = AHEAD_BYTES / (len + 1);
		if (!g->sink->done(g->sink->ctx, g->at))
			*got = GOT_LAST;
	}
	return 0;
}

/* ---- several ---- */

static int send_ahead(struct get *g, struct ds_err *err)
{
	size_t ahead = g->ahead < AHEAD_LEAST ? AHEAD_LEAST : g->ahead > AHEAD_MOST ? AHEAD_MOST : g->ahead;
	char name[REDIS_NAME];
	int rc = 0;

	while (!rc && g->sent < g->n && g->sent - g->at < ahead) {
		struct redis_node **node = &g->nodes[g->sent % AHEAD_MOST];

		rc = redis_node_of(g->ss, &g->keys[g->sent], node, err);
		if (!rc)
			rc = redis_ready(g->ss, *node, err);
		if (rc && g->sent > g->at) /* it may never come to it */
			return 0;
		if (rc)
			break;
		redis_name(&g->keys[g->sent], name);
		redis_add_command(*node, 2, (const char *const[]){ "GET", name });
		(*node)->owed++;
		g->sent++;
		if (g->ss->slots) /* other nodes are waited for meanwhile */
			rc = resp_flush(&(*node)->r, err);
	}
	return rc;
}

static int read_next(struct get *g, enum got *got, struct ds_err *err)
{
	struct redis_node *node = g->nodes[g->at % AHEAD_MOST];
	struct resp_reply reply;
	struct ds_err why;
	int rc;

	node->r.deadline = redis_deadline(g->ss);
	rc = resp_reply(&node->r, &reply, err);
	if (rc)
		return rc;
	node->used = true;
	switch (reply.kind) {
	case RESP_NIL:
		*got = GOT_NOTHING;
		break;
	case RESP_BULK:
		rc = read_item(g, node, (size_t)reply.n, got, err);
		break;
	case RESP_ERROR:
		*got = redis_refused(node, reply.text, &why) == DS_NO ? GOT_BAD : GOT_REDIRECTED;
		break;
	default:
		rc = err_set(err, DS_PROTO, "'%s' answers GET with no string", node->addr.text);
	}
	if (!rc)
		node->owed--;
	return rc;
}

/* This item alone, wherever it is now; those behind it are asked for again. */
static int get_redirected(struct get *g, enum got *got, struct ds_err *err)
{
	char name[REDIS_NAME];
	struct resp_reply reply;
	struct redis_node *node;
	int rc;

	redis_settle(g->ss);
	redis_name(&g->keys[g->at], name);
	rc = redis_ask(g->ss, &g->keys[g->at], 2, (const char *const[]){ "GET", name }, &node, &reply, err);
	g->sent = g->at + 1;
	if (rc == DS_NO) {
		*got = GOT_BAD;
		return 0;
	}
	if (rc)
		return rc;
	*got = GOT_NOTHING;
	if (reply.kind == RESP_BULK)
		rc = read_item(g, node, (size_t)reply.n, got, err);
	else if (reply.kind != RESP_NIL)
		rc = err_set(err, DS_PROTO, "'%s' answers GET with no string", node->addr.text);
	if (rc)
		redis_drop(node);
	return rc;
}

/* Connections that have gone since the last call are noticed here: once more. */
static bool again(struct get *g, int rc)
{
	redis_abandon(g->ss);
	g->ss->stale = g->ss->slots != NULL;
	g->sent = g->at;
	return rc == DS_UNAVAILABLE && !g->placed && g->lost++ == 0;
}

static int get_next(struct get *g, enum got *got, struct ds_err *err)
{
	int rc = send_ahead(g, err);

	if (!rc)
		rc = read_next(g, got, err);
	if (!rc && *got == GOT_REDIRECTED)
		rc = get_redirected(g, got, err);
	return rc;
}

int redis_get(struct store_session *base, const struct store_key *keys, size_t n, const struct store_sink *sink,
	size_t *got, struct ds_err *err)
{
	struct get g = { .ss = (struct redis_session *)base, .keys = keys, .n = n, .sink = sink };
	enum got what = GOT_ITEM;
	struct ds_err ignored;
	bool was;
	int rc = 0;

	while (!rc && g.at < n && what == GOT_ITEM) {
		rc = get_next(&g, &what, err);
		if (rc && again(&g, rc)) {
			what = GOT_ITEM;
			rc = 0;
		} else if (!rc && (what == GOT_ITEM || what == GOT_LAST)) {
			g.at++;
		}
	}
	*got = g.at;
	if (rc)
		return rc;
	redis_settle(g.ss);
	if (what == GOT_NOTHING || what == GOT_BAD)
		g.ss->s->misses++;
	if (what == GOT_BAD) {
		g.ss->s->corrupt++;
		if (!base->store->o.read_only)
			base->store->ops->del(base, &keys[g.at], &was, &ignored);
	}
	return 0;
}
