#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/opt.h"
#include "base/time.h"
#include "store/redis_impl.h"

enum { HAS_AT_ONCE = 2048, STAT_BYTES = 1 << 20, EDGES = 3 };

#define MS ((uint64_t)1000000)

void redis_name(const struct store_key *key, char name[REDIS_NAME])
{
	memcpy(name, "ds:", 3);
	store_key_hex(key, name + 3);
}

/* ---- stores and sessions ---- */

static void redis_close(struct store *base)
{
	struct redis *s = (struct redis *)base;

	if (s->password)
		explicit_bzero(s->password, strlen(s->password));
	free(s->password);
	free(s->user);
	pthread_mutex_destroy(&s->lock);
	free(s->known);
	free(s);
}

static int open_any(struct store **out, const struct store_ops *ops, const char *rest, const struct store_options *o,
	int (*parse)(struct redis *s, const char *rest, struct ds_err *err), struct ds_err *err)
{
	struct redis *s = mem_calloc(1, sizeof *s);
	int rc;

	if (!s)
		return err_nomem(err, sizeof *s, "a store");
	pthread_mutex_init(&s->lock, NULL);
	s->base.ops = ops;
	if (o)
		s->base.o = *o;
	if (!s->base.o.max_frame)
		s->base.o.max_frame = FRAME_MAX_DEFAULT;
	rc = redis_take_user(s, &rest, err);
	if (!rc)
		rc = parse(s, rest, err);
	if (!rc && s->user && !s->base.o.password)
		rc = err_set(err, DS_USAGE, "'%s%s@%s': no file with the password of that user is named", ops->scheme,
			s->user, rest);
	if (!rc && s->base.o.sync)
		rc = err_set(err, DS_CONFIG, "'%s%s' cannot promise that what it answers is on disk", ops->scheme,
		rest);
	if (!rc && s->base.o.password)
		rc = redis_read_password(s, s->base.o.password, err);
	if (rc)
		redis_close(&s->base);
	else
		*out = &s->base;
	return rc;
}

static int redis_open(struct store **out, const char *rest, const struct store_options *o, struct ds_err *err)
{
	return open_any(out, &store_redis, rest, o, redis_parse_one, err);
}

static int redis_cluster_open(struct store **out, const char *rest, const struct store_options *o, struct ds_err *err)
{
	return open_any(out, &store_redis_cluster, rest, o, redis_parse_many, err);
}

static void redis_end(struct store_session *base)
{
	struct redis_session *ss = (struct redis_session *)base;

	for (size_t i = 0; i < ss->n; i++) {
		redis_drop(ss->nodes[i]);
		free(ss->nodes[i]);
	}
	free(ss->nodes);
	free(ss->slots);
	frame_writer_free(ss->w);
	frame_parser_free(ss->parser);
	meta_free(ss->meta);
	free(ss->front);
	free(ss);
}

static int redis_begin(struct store_session **out, struct store *base, struct ds_err *err)
{
	struct redis_session *ss = mem_calloc(1, sizeof *ss);
	size_t at;
	int rc;

	if (!ss)
		return err_nomem(err, sizeof *ss, "a session");
	ss->base.store = base;
	ss->s = (struct redis *)base;
	rc = frame_writer_new(&ss->w, -1, "redis", err);
	if (!rc)
		rc = frame_parser_new(&ss->parser, err);
	if (!rc && !(ss->meta = meta_new()))
		rc = err_nomem(err, 1, "a session");
	pthread_mutex_lock(&ss->s->lock);
	for (size_t i = 0; !rc && i < ss->s->nknown; i++)
		rc = redis_node_add(ss, &ss->s->known[i], &at, err);
	pthread_mutex_unlock(&ss->s->lock);
	for (size_t i = 0; !rc && i < ss->s->nseeds; i++)
		rc = redis_node_add(ss, &ss->s->seeds[i], &at, err);
	if (!rc && ss->s->cluster) {
		ss->slots = mem_array(REDIS_SLOTS, sizeof *ss->slots);
		if (ss->slots)
			memset(ss->slots, 0xff, REDIS_SLOTS * sizeof *ss->slots);
		else
			rc = err_nomem(err, REDIS_SLOTS * sizeof *ss->slots, "the map of a cluster");
		ss->stale = true;
	}
	if (rc)
		redis_end(&ss->base);
	else
		*out = &ss->base;
	return rc;
}

/* ---- has ---- */

static int ask_one(struct redis_session *ss, const struct store_key *key, uint8_t *here, struct ds_err *err)
{
	char name[REDIS_NAME];
	struct resp_reply reply;
	struct redis_node *node;
	int rc;

	redis_name(key, name);
	rc = redis_ask(ss, key, 2, (const char *const[]){ "EXISTS", name }, &node, &reply, err);
	if (!rc && reply.kind != RESP_INT) {
		redis_drop(node);
		rc = err_set(err, DS_PROTO, "'%s' answers EXISTS with no number", node->addr.text);
	}
	*here = !rc && reply.n > 0;
	return rc;
}

enum { ASK_AGAIN = 2 }; /* in place of whether a key is there: not known by this node */

static int ask_some(struct redis_session *ss, const struct store_key *keys, size_t n, struct redis_node **nodes,
	struct ds_err *err)
{
	char name[REDIS_NAME];
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++) {
		rc = redis_node_of(ss, &keys[i], &nodes[i], err);
		if (!rc)
			rc = redis_ready(ss, nodes[i], err);
		if (rc)
			break;
		redis_name(&keys[i], name);
		redis_add_command(nodes[i], 2, (const char *const[]){ "EXISTS", name });
		nodes[i]->owed++;
	}
	for (size_t i = 0; !rc && i < ss->n; i++)
		if (ss->nodes[i]->owed)
			rc = resp_flush(&ss->nodes[i]->r, err);
	return rc;
}

/* A chunk: all keys are asked for, then all replies read. */
static int has_some(struct redis_session *ss, const struct store_key *keys, size_t n, struct redis_node **nodes,
	uint8_t *here, struct ds_err *err)
{
	struct resp_reply reply;
	int rc = ask_some(ss, keys, n, nodes, err);

	for (size_t i = 0; !rc && i < n; i++) {
		nodes[i]->r.deadline = redis_deadline(ss);
		rc = resp_reply(&nodes[i]->r, &reply, err);
		if (rc)
			break;
		nodes[i]->owed--;
		nodes[i]->used = true;
		here[i] = reply.kind == RESP_INT ? reply.n > 0 : ASK_AGAIN;
		if (reply.kind != RESP_INT && reply.kind != RESP_ERROR)
			rc = err_set(err, DS_PROTO, "'%s' answers EXISTS with no number", nodes[i]->addr.text);
	}
	if (!rc)
		return 0;
	redis_abandon(ss);
	return rc;
}

/* Connections that have gone since are noticed here: once more, key by key where it takes redirections. */
static int has_chunk(struct redis_session *ss, const struct store_key *keys, size_t n, struct redis_node **nodes,
	uint8_t *here, struct ds_err *err)
{
	int rc = has_some(ss, keys, n, nodes, here, err);

	if (rc == DS_UNAVAILABLE) {
		ss->stale = ss->slots != NULL;
		rc = has_some(ss, keys, n, nodes, here, err);
	}
	for (size_t i = 0; !rc && i < n; i++)
		if (here[i] == ASK_AGAIN)
			rc = ask_one(ss, &keys[i], &here[i], err);
	return rc;
}

static int redis_has(struct store_session *base, const struct store_key *keys, size_t n, uint8_t *here, size_t *prefix,
	struct ds_err *err)
{
	struct redis_session *ss = (struct redis_session *)base;
	struct redis_node **nodes = mem_array(HAS_AT_ONCE, sizeof(*nodes));
	uint8_t some[HAS_AT_ONCE];
	bool row = true; /* none was missing so far */
	size_t found = 0, asked = 0;
	int rc = nodes ? 0 : err_nomem(err, HAS_AT_ONCE * sizeof(*nodes), "keys that are asked for");

	*prefix = 0;
	while (!rc && asked < n && (row || here)) {
		size_t k = n - asked < HAS_AT_ONCE ? n - asked : HAS_AT_ONCE;

		rc = has_chunk(ss, keys + asked, k, nodes, some, err);
		for (size_t i = 0; !rc && i < k; i++) {
			row = row && some[i];
			*prefix += row;
			found += some[i];
		}
		if (!rc && here)
			memcpy(here + asked, some, k);
		asked += rc ? 0 : k;
	}
	free(nodes);
	ss->s->has += asked;
	ss->s->has_found += found;
	return rc;
}

/* ---- put, del ---- */

static int make_frame(struct redis_session *ss, const struct store_put *p, uint64_t ttl_ns, struct frame_front *front,
	uint64_t *bytes, struct ds_err *err)
{
	struct store_item item = { .key = p->key, .at_ns = (uint64_t)time_wall_ns() };
	int rc;

	for (int i = 0; i < p->iovs; i++)
		if (__builtin_add_overflow(item.size, p->iov[i].iov_len, &item.size))
			item.size = UINT64_MAX;
	if (item.size > ss->base.store->o.max_frame || item.size > RESP_BULK_MAX - (STORE_META_MAX << 1))
		return err_set(err, DS_DATA, "a payload of %llu bytes is more than this store takes",
			(unsigned long long)item.size);
	if (ttl_ns && __builtin_add_overflow(item.at_ns, ttl_ns, &item.expires_ns))
		item.expires_ns = 0;
	meta_reset(ss->meta);
	store_item_put(ss->meta, &item);
	if (p->meta)
		meta_put_built(ss->meta, p->meta);
	rc = frame_encode(ss->w, FRAME_STORE, 0, 0, 0, ss->meta, p->iov, p->iovs, true, front, err);
	if (!rc && front->n > STORE_META_MAX)
		rc = err_set(err, DS_DATA, "meta of %zu bytes is more than a store takes", front->n);
	*bytes = item.size;
	return rc;
}

/* SET NAME FRAME [PX MS] [NX]: what stands before the frame, and behind its payload. */
static void put_edges(const struct store_put *p, uint64_t ttl_ns, const struct frame_front *front, uint64_t bytes,
	struct buf *before, struct buf *after)
{
	static const char zeros[FRAME_ALIGN];
	char name[REDIS_NAME], ms[24];
	int args = 3 + (ttl_ns ? 2 : 0) + !p->replace;

	redis_name(&p->key, name);
	buf_printf(before, "*%d\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n", args, sizeof name - 1, name,
		front->n + (size_t)bytes + front->pad);
	buf_add(after, zeros, front->pad);
	buf_str(after, "\r\n");
	if (ttl_ns) {
		snprintf(ms, sizeof ms, "%llu", (unsigned long long)((ttl_ns - 1) / MS + 1));
		buf_printf(after, "$2\r\nPX\r\n$%zu\r\n%s\r\n", strlen(ms), ms);
	}
	if (!p->replace)
		buf_str(after, "$2\r\nNX\r\n");
}

static int send_put(struct redis_session *ss, const struct store_put *p, uint64_t ttl_ns,
	const struct frame_front *front, uint64_t bytes, enum store_put_result *how, struct ds_err *err)
{
	struct iovec *iov = mem_array((size_t)p->iovs + EDGES, sizeof *iov);
	struct buf before = { 0 }, after = { 0 };
	struct redis_node *node;
	struct resp_reply reply;
	int rc;

	put_edges(p, ttl_ns, front, bytes, &before, &after);
	if (!iov || before.nomem || after.nomem) {
		rc = err_nomem(err, ((size_t)p->iovs + EDGES) * sizeof *iov, "an item that is put");
		goto out;
	}
	iov[0] = (struct iovec){ before.p, before.len };
	iov[1] = (struct iovec){ (void *)(uintptr_t)front->p, front->n };
	if (p->iovs)
		memcpy(iov + 2, p->iov, (size_t)p->iovs * sizeof *iov);
	iov[2 + p->iovs] = (struct iovec){ after.p, after.len };
	rc = redis_call(ss, &p->key, iov, (size_t)p->iovs + EDGES, &node, &reply, err);
	if (!rc && reply.kind != RESP_STATUS && reply.kind != RESP_NIL) {
		redis_drop(node);
		rc = err_set(err, DS_PROTO, "'%s' answers SET with something else than OK", node->addr.text);
	}
	if (!rc)
		*how = reply.kind == RESP_NIL ? STORE_ALREADY : STORE_STORED;
out:
	free(iov);
	buf_free(&before);
	buf_free(&after);
	return rc;
}

static int redis_put(struct store_session *base, const struct store_put *p, enum store_put_result *how,
	struct ds_err *err)
{
	struct redis_session *ss = (struct redis_session *)base;
	uint64_t ttl_ns = p->ttl_ns ? p->ttl_ns : base->store->o.ttl_ns, bytes = 0;
	struct frame_front front;
	int rc;

	if (p->sync)
		rc = err_set(err, DS_CONFIG, "'%s' cannot promise that an item is on disk", ss->nodes[0]->addr.text);
	else
		rc = make_frame(ss, p, ttl_ns, &front, &bytes, err);
	if (!rc)
		rc = send_put(ss, p, ttl_ns, &front, bytes, how, err);
	if (rc) {
		ss->s->refused++;
	} else if (*how == STORE_ALREADY) {
		ss->s->already++;
	} else {
		ss->s->puts++;
		ss->s->put_bytes += bytes;
	}
	return rc;
}

static int redis_del(struct store_session *base, const struct store_key *key, bool *was, struct ds_err *err)
{
	struct redis_session *ss = (struct redis_session *)base;
	char name[REDIS_NAME];
	struct resp_reply reply;
	struct redis_node *node;
	int rc;

	redis_name(key, name);
	rc = redis_ask(ss, key, 2, (const char *const[]){ "DEL", name }, &node, &reply, err);
	if (!rc && reply.kind != RESP_INT) {
		redis_drop(node);
		rc = err_set(err, DS_PROTO, "'%s' answers DEL with no number", node->addr.text);
	}
	*was = !rc && reply.n > 0;
	return rc;
}

/* ---- stat ---- */

/* The number behind "NAME:" at the beginning of a line of INFO. */
static uint64_t info_number(const char *info, const char *name)
{
	size_t n = strlen(name);
	int64_t v;

	for (const char *line = info; line;) {
		if (strncmp(line, name, n) == 0 && line[n] == ':' &&
			resp_number(line + n + 1, strcspn(line + n + 1, "\r\n"), 0, INT64_MAX, &v))
			return (uint64_t)v;
		line = strchr(line, '\n');
		if (line)
			line++;
	}
	return 0;
}

static int add_node(struct redis_session *ss, struct redis_node *node, struct store_stat *st, struct ds_err *err)
{
	struct resp_reply reply;
	char *info = NULL;
	int rc = redis_ready(ss, node, err);

	if (rc)
		return rc;
	redis_add_command(node, 1, (const char *const[]){ "DBSIZE" });
	redis_add_command(node, 1, (const char *const[]){ "INFO" });
	node->owed = 2;
	rc = resp_reply(&node->r, &reply, err);
	if (!rc && reply.kind == RESP_ERROR)
		rc = redis_refused(node, reply.text, err);
	if (!rc)
		st->items += reply.kind == RESP_INT && reply.n > 0 ? (uint64_t)reply.n : 0;
	if (!rc)
		rc = resp_reply(&node->r, &reply, err);
	if (!rc && (reply.kind != RESP_BULK || reply.n > STAT_BYTES || !(info = mem_calloc(1, (size_t)reply.n + 1))))
		rc = err_set(err, DS_PROTO, "'%s' answers INFO with no text, or too much", node->addr.text);
	if (!rc)
		rc = resp_bytes(&node->r, info, (size_t)reply.n, err);
	if (!rc)
		rc = resp_crlf(&node->r, err);
	if (rc) {
		redis_drop(node);
	} else {
		node->owed = 0;
		node->used = true;
		st->bytes += info_number(info, "used_memory");
		st->capacity += info_number(info, "maxmemory");
		st->evicted += info_number(info, "evicted_keys");
		st->expired += info_number(info, "expired_keys");
	}
	free(info);
	return rc;
}

/* Of a cluster: the nodes that have slots. */
static int add_nodes(struct redis_session *ss, struct store_stat *st, struct ds_err *err)
{
	static const struct store_key any;
	struct redis_node *node;
	int rc = redis_node_of(ss, &any, &node, err); /* reads the map */

	if (rc || !ss->slots)
		return rc ? rc : add_node(ss, node, st, err);
	for (size_t i = 0; !rc && i < ss->n; i++) {
		bool used = false;

		for (size_t s = 0; s < REDIS_SLOTS && !used; s++)
			used = ss->slots[s] == i;
		if (used)
			rc = add_node(ss, ss->nodes[i], st, err);
	}
	return rc;
}

static int redis_stat(struct store_session *base, struct store_stat *st, struct ds_err *err)
{
	struct redis_session *ss = (struct redis_session *)base;
	struct redis *s = ss->s;
	int rc = add_nodes(ss, st, err);

	if (rc == DS_UNAVAILABLE) { /* a connection that has gone since: once more */
		*st = (struct store_stat){ 0 };
		ss->stale = ss->slots != NULL;
		rc = add_nodes(ss, st, err);
	}
	st->has = s->has;
	st->has_found = s->has_found;
	st->hits = s->hits;
	st->misses = s->misses;
	st->hit_bytes = s->hit_bytes;
	st->puts = s->puts;
	st->put_bytes = s->put_bytes;
	st->already = s->already;
	st->refused = s->refused;
	st->corrupt = s->corrupt;
	st->expired += s->expired;
	return rc;
}

const struct store_ops store_redis = {
	.scheme = "redis://", .open = redis_open, .close = redis_close, .begin = redis_begin, .end = redis_end,
	.has = redis_has, .get = redis_get, .put = redis_put, .del = redis_del, .stat = redis_stat,
};
const struct store_ops store_redis_cluster = {
	.scheme = "redis-cluster://", .open = redis_cluster_open, .close = redis_close, .begin = redis_begin,
	.end = redis_end, .has = redis_has, .get = redis_get, .put = redis_put, .del = redis_del, .stat = redis_stat,
};
