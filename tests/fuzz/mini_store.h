/*
 * A store of a few small items in memory, with a file behind it or without: what servers and clients are fuzzed with.
 * Content follows from the key's number, so that a wrong one is seen.
 */
#ifndef DS_TESTS_MINI_STORE_H
#define DS_TESTS_MINI_STORE_H

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/store_impl.h"
#include "tests/fuzz/must.h"

enum { MINI_ITEMS = 6 /* there at first */, MINI_SLOTS = 10, MINI_ROOM = 1 << 15 };

struct mini_item { struct store_key key; uint8_t *frame; size_t front, data; };

struct mini {
	struct store base;
	pthread_mutex_t lock;
	struct mini_item item[MINI_SLOTS]; /* frame NULL: none */
	int fd;
	bool changed; /* an item that was there at first has been deleted */
};

static const size_t mini_sizes[MINI_ITEMS] = { 0, 1, 64, 100, 3000, 20000 };

static inline struct store_key mini_key(size_t i)
{
	struct store_key k;

	for (size_t b = 0; b < sizeof(k.b); b++)
		k.b[b] = (uint8_t)((i + 1) * 37 + b * 11);
	return k;
}

static inline uint8_t mini_byte(size_t i, size_t at)
{
	return (uint8_t)(i * 13 + at / 3);
}

static inline bool mini_right(size_t i, const uint8_t *p, size_t n)
{
	bool same = n == mini_sizes[i];

	for (size_t at = 0; at < n && same; at++)
		same = p[at] == mini_byte(i, at);
	return same;
}

static inline struct mini_item *mini_find(struct mini *m, const struct store_key *key)
{
	for (size_t i = 0; i < MINI_SLOTS; i++)
		if (m->item[i].frame && store_key_equal(&m->item[i].key, key))
			return &m->item[i];
	return NULL;
}

static inline int mini_begin(struct store_session **ss, struct store *s, struct ds_err *err)
{
	(void)err;
	*ss = calloc(1, sizeof(**ss));
	must(*ss != NULL);
	(*ss)->store = s;
	return 0;
}

static inline void mini_end(struct store_session *ss)
{
	free(ss);
}

static inline int mini_has(struct store_session *ss, const struct store_key *keys, size_t n, uint8_t *here,
	size_t *prefix, struct ds_err *err)
{
	struct mini *m = (struct mini *)ss->store;
	bool row = true;

	(void)err;
	*prefix = 0;
	pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < n; i++) {
		bool is = mini_find(m, &keys[i]);

		row = row && is;
		*prefix += row;
		if (here)
			here[i] = is;
	}
	pthread_mutex_unlock(&m->lock);
	return 0;
}

/* One item to the sink; false: no more. */
static inline bool mini_give(struct mini *m, size_t i, const struct store_key *key, const struct store_sink *sink)
{
	struct frame_parser *parser;
	struct store_item item;
	struct mini_item *e;
	uint8_t *copy = NULL, *to;
	size_t front = 0;
	struct ds_err err;
	struct frame f;

	pthread_mutex_lock(&m->lock);
	e = mini_find(m, key);
	if (e) {
		front = e->front;
		copy = malloc(e->front + e->data + 1);
		must(copy != NULL);
		memcpy(copy, e->frame, e->front + e->data);
	}
	pthread_mutex_unlock(&m->lock);
	if (!copy)
		return false;
	must(frame_parser_new(&parser, &err) == 0);
	must(frame_parse(parser, copy, front, &f, &err) == 0 && store_item_get(&f, &item, &err) == 0);
	to = sink->place(sink->ctx, i, &item);
	if (to)
		memcpy(to, copy + front, item.size);
	frame_parser_free(parser);
	free(copy);
	return to && sink->done(sink->ctx, i);
}

static inline int mini_get(struct store_session *ss, const struct store_key *keys, size_t n,
	const struct store_sink *sink, size_t *got, struct ds_err *err)
{
	struct mini *m = (struct mini *)ss->store;

	(void)err;
	for (*got = 0; *got < n && mini_give(m, *got, &keys[*got], sink); ++*got)
		;
	return 0;
}

static inline void mini_drop(struct mini_item *e)
{
	free(e->frame);
	*e = (struct mini_item){ 0 };
}

/* The frame of what is put, into the slot and the file. */
static inline void mini_keep(struct mini *m, struct mini_item *e, const struct store_put *p)
{
	struct store_item item = { .key = p->key, .at_ns = 1 };
	struct meta_builder *b = meta_new();
	struct frame_front front;
	struct frame_writer *w;
	struct ds_err err;
	size_t at;

	for (int i = 0; i < p->iovs; i++)
		item.size += p->iov[i].iov_len;
	must(b != NULL);
	must(frame_writer_new(&w, -1, "mini", &err) == 0);
	store_item_put(b, &item);
	must(frame_encode(w, FRAME_STORE, 0, 0, 0, b, p->iov, p->iovs, true, &front, &err) == 0);
	e->frame = calloc(1, front.n + item.size + front.pad + 1);
	must(e->frame != NULL);
	e->key = p->key;
	e->front = front.n;
	e->data = item.size + front.pad;
	memcpy(e->frame, front.p, front.n);
	at = front.n;
	for (int i = 0; i < p->iovs; i++) {
		memcpy(e->frame + at, p->iov[i].iov_base, p->iov[i].iov_len);
		at += p->iov[i].iov_len;
	}
	must(pwrite(m->fd, e->frame, e->front + e->data, (e - m->item) * MINI_ROOM) == (ssize_t)(e->front + e->data));
	frame_writer_free(w);
	meta_free(b);
}

static inline int mini_put(struct store_session *ss, const struct store_put *p, enum store_put_result *how,
	struct ds_err *err)
{
	struct mini *m = (struct mini *)ss->store;
	struct mini_item *e, *empty = NULL;
	size_t size = 0;

	(void)err;
	for (int i = 0; i < p->iovs; i++)
		size += p->iov[i].iov_len;
	pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < MINI_SLOTS && !empty; i++)
		empty = m->item[i].frame ? NULL : &m->item[i];
	e = mini_find(m, &p->key);
	*how = e ? STORE_ALREADY : STORE_NOT_ADMITTED;
	if (!e && empty && size < MINI_ROOM - 4096) {
		mini_keep(m, empty, p);
		*how = STORE_STORED;
	}
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static inline int mini_del(struct store_session *ss, const struct store_key *key, bool *was, struct ds_err *err)
{
	struct mini *m = (struct mini *)ss->store;
	struct mini_item *e;

	(void)err;
	pthread_mutex_lock(&m->lock);
	e = mini_find(m, key);
	*was = e != NULL;
	m->changed = m->changed || e;
	if (e)
		mini_drop(e);
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static inline int mini_pin(struct store_session *ss, const struct store_key *keys, size_t n, bool pin,
	struct ds_err *err)
{
	(void)ss, (void)keys, (void)n;
	return pin ? err_set(err, DS_TEMP, "too much is pinned") : 0;
}

static inline int mini_stat(struct store_session *ss, struct store_stat *st, struct ds_err *err)
{
	(void)ss, (void)err;
	*st = (struct store_stat){ .items = MINI_ITEMS, .bytes = 1 };
	return 0;
}

static inline int mini_ref(struct store_session *ss, const struct store_key *key, struct store_ref *ref,
	struct ds_err *err)
{
	struct mini *m = (struct mini *)ss->store;
	struct mini_item *e;

	pthread_mutex_lock(&m->lock);
	e = mini_find(m, key);
	if (e)
		*ref = (struct store_ref){ .fd = m->fd, .segment = 7, .offset = (uint64_t)(e - m->item) * MINI_ROOM,
			.head_bytes = (uint32_t)e->front, .data_bytes = (uint32_t)e->data };
	pthread_mutex_unlock(&m->lock);
	return e ? 0 : err_set(err, DS_NO, "no such item");
}

static inline void mini_release(struct store_session *ss, struct store_ref *ref)
{
	(void)ss, (void)ref;
}

static inline void mini_doubt(struct store_session *ss, const struct store_key *key)
{
	(void)ss, (void)key;
}

static inline void mini_close(struct store *s)
{
	struct mini *m = (struct mini *)s;

	for (size_t i = 0; i < MINI_SLOTS; i++)
		mini_drop(&m->item[i]);
	close(m->fd);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

#define MINI_OPS .scheme = "mini:", .close = mini_close, .begin = mini_begin, .end = mini_end, .has = mini_has, \
	.get = mini_get, .put = mini_put, .del = mini_del, .pin = mini_pin, .stat = mini_stat
static const struct store_ops mini_memory = { MINI_OPS };
static const struct store_ops mini_file = { MINI_OPS, .find = mini_ref, .release = mini_release, .doubt = mini_doubt };

/* With the items that are there at first. */
static inline struct store *mini_open(bool file)
{
	struct mini *m = calloc(1, sizeof(*m));
	struct store_session ss = { 0 };
	uint8_t bytes[MINI_ROOM];

	must(m != NULL);
	signal(SIGPIPE, SIG_IGN); /* as services have it */
	m->base.ops = file ? &mini_file : &mini_memory;
	pthread_mutex_init(&m->lock, NULL);
	m->fd = memfd_create("mini", MFD_CLOEXEC);
	must(m->fd >= 0);
	ss.store = &m->base;
	for (size_t i = 0; i < MINI_ITEMS; i++) {
		const struct iovec iov = { bytes, mini_sizes[i] };
		const struct store_put p = { .key = mini_key(i), .iov = &iov, .iovs = 1 };
		enum store_put_result how;
		struct ds_err err;

		for (size_t at = 0; at < mini_sizes[i]; at++)
			bytes[at] = mini_byte(i, at);
		must(mini_put(&ss, &p, &how, &err) == 0 && how == STORE_STORED);
	}
	return &m->base;
}

#endif
