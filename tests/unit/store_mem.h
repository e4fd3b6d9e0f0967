/*
 * A store in memory, for tests of what stands in front of one: items in a list, found by looking at each.  It can be
 * told to fail, and to give all names one key.
 */
#ifndef DS_TESTS_STORE_MEM_H
#define DS_TESTS_STORE_MEM_H

#include <pthread.h>

#include "base/mem.h"
#include "base/time.h"
#include "store/store_impl.h"
#include "tests/unit/tap.h"

struct mem_item {
	struct mem_item *next;
	struct store_item item;
	struct meta_doc *doc;
	uint8_t *data;
};

struct mem_store {
	struct store base;
	pthread_mutex_t lock;
	struct mem_item *first;
	int fail;            /* code of every call, 0: none */
	bool full;
	bool one_key;        /* all keys are the same */
	bool spoilt;         /* no payload is right */
	bool admits_nothing;
};

static struct mem_item **mem_find(struct mem_store *m, const struct store_key *key)
{
	struct mem_item **p = &m->first;

	while (*p && !m->one_key && !store_key_equal(&(*p)->item.key, key))
		p = &(*p)->next;
	if (*p && store_item_expired(&(*p)->item, (uint64_t)time_wall_ns())) {
		struct mem_item *gone = *p;

		*p = gone->next;
		meta_doc_free(gone->doc);
		free(gone->data);
		free(gone);
		return mem_find(m, key);
	}
	return p;
}

static int mem_fails(struct store_session *ss, struct ds_err *err)
{
	struct mem_store *m = (struct mem_store *)ss->store;

	if (m->fail)
		(m->full ? err_full : err_set)(err, m->fail, "the store does\nas it was told");
	return m->fail;
}

static int mem_has(struct store_session *ss, const struct store_key *keys, size_t n, uint8_t *here, size_t *prefix,
	struct ds_err *err)
{
	struct mem_store *m = (struct mem_store *)ss->store;
	bool row = true;

	*prefix = 0;
	for (size_t i = 0; i < n; i++) {
		bool there = *mem_find(m, &keys[i]) != NULL;

		row = row && there;
		*prefix += row;
		if (here)
			here[i] = there;
	}
	return mem_fails(ss, err);
}

static int mem_get(struct store_session *ss, const struct store_key *keys, size_t n, const struct store_sink *sink,
	size_t *got, struct ds_err *err)
{
	struct mem_store *m = (struct mem_store *)ss->store;
	int rc = mem_fails(ss, err);

	pthread_mutex_lock(&m->lock);
	for (*got = 0; !rc && *got < n; ++*got) {
		struct mem_item *it = *mem_find(m, &keys[*got]);
		void *dst = it ? sink->place(sink->ctx, *got, &it->item) : NULL;

		if (!dst || m->spoilt)
			break;
		memcpy(dst, it->data, it->item.size);
		if (!sink->done(sink->ctx, *got)) {
			++*got;
			break;
		}
	}
	pthread_mutex_unlock(&m->lock);
	return rc;
}

/* With the lock. */
static bool mem_remove(struct mem_store *m, const struct store_key *key)
{
	struct mem_item **p = mem_find(m, key), *it = *p;

	if (!it)
		return false;
	*p = it->next;
	meta_doc_free(it->doc);
	free(it->data);
	free(it);
	return true;
}

static int mem_del(struct store_session *ss, const struct store_key *key, bool *was, struct ds_err *err)
{
	struct mem_store *m = (struct mem_store *)ss->store;

	pthread_mutex_lock(&m->lock);
	*was = mem_remove(m, key);
	pthread_mutex_unlock(&m->lock);
	return mem_fails(ss, err);
}

/* The meta as a reader would see it. */
static struct meta_doc *mem_meta(const struct meta_builder *b, const struct store_item *item)
{
	struct meta_builder *all = meta_new();
	struct frame_writer *w;
	struct frame_front front;
	struct meta_doc *doc = NULL;
	struct ds_err err;

	store_item_put(all, item);
	if (b)
		meta_put_built(all, b);
	if (frame_writer_new(&w, -1, "mem", &err) == 0 &&
		frame_encode(w, FRAME_STORE, 0, 0, 0, all, NULL, 0, false, &front, &err) == 0)
		meta_parse(&doc, front.p + FRAME_HEAD_BYTES, front.n - FRAME_HEAD_BYTES - FRAME_BIN_BYTES, &err);
	frame_writer_free(w);
	meta_free(all);
	return doc;
}

static struct mem_item *mem_made(const struct store_put *p)
{
	struct mem_item *it = mem_calloc(1, sizeof *it);

	it->item.key = p->key;
	for (int i = 0; i < p->iovs; i++)
		it->item.size += p->iov[i].iov_len;
	it->data = mem_array(it->item.size + 1, 1);
	for (size_t i = 0, at = 0; i < (size_t)p->iovs; at += p->iov[i++].iov_len)
		memcpy(it->data + at, p->iov[i].iov_base, p->iov[i].iov_len);
	it->item.at_ns = (uint64_t)time_wall_ns();
	it->item.expires_ns = p->ttl_ns ? it->item.at_ns + p->ttl_ns : 0;
	it->doc = mem_meta(p->meta, &it->item);
	it->item.meta = meta_root(it->doc);
	return it;
}

static int mem_put(struct store_session *ss, const struct store_put *p, enum store_put_result *how, struct ds_err *err)
{
	struct mem_store *m = (struct mem_store *)ss->store;
	struct mem_item *it;

	if (mem_fails(ss, err))
		return err->code;
	pthread_mutex_lock(&m->lock);
	*how = *mem_find(m, &p->key) && !p->replace ? STORE_ALREADY : m->admits_nothing ? STORE_NOT_ADMITTED
		: STORE_STORED;
	if (*how == STORE_STORED) {
		mem_remove(m, &p->key);
		it = mem_made(p);
		it->next = m->first;
		m->first = it;
	}
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static int mem_stat(struct store_session *ss, struct store_stat *st, struct ds_err *err)
{
	struct mem_store *m = (struct mem_store *)ss->store;

	for (struct mem_item *it = m->first; it; it = it->next)
		st->items++;
	st->capacity = 12345;
	return mem_fails(ss, err);
}

static void mem_close(struct store *s)
{
	struct mem_store *m = (struct mem_store *)s;
	struct store_session ss = { .store = s };
	struct ds_err err;
	bool was;

	m->fail = 0;
	while (m->first)
		mem_del(&ss, &m->first->item.key, &was, &err);
	free(m);
}

static int mem_begin(struct store_session **ss, struct store *s, struct ds_err *err)
{
	*ss = mem_calloc(1, sizeof **ss);
	(*ss)->store = s;
	(void)err;
	return 0;
}

static void mem_end(struct store_session *ss)
{
	free(ss);
}

/* That it is there says that the store is one of files; what it finds cannot be read, so that the item is got. */
static int mem_find_none(struct store_session *ss, const struct store_key *key, struct store_ref *ref,
	struct ds_err *err)
{
	(void)key;
	*ref = (struct store_ref){ .fd = -1 };
	return mem_fails(ss, err);
}

static void mem_release(struct store_session *ss, struct store_ref *ref)
{
	(void)ss;
	ref->fd = -1;
}

static const struct store_ops mem_ops = {
	.scheme = "mem:", .close = mem_close, .begin = mem_begin, .end = mem_end, .has = mem_has, .get = mem_get,
	.put = mem_put, .del = mem_del, .stat = mem_stat,
};

static const struct store_ops mem_file_ops = {
	.scheme = "mem:", .close = mem_close, .begin = mem_begin, .end = mem_end, .has = mem_has, .get = mem_get,
	.put = mem_put, .del = mem_del, .stat = mem_stat, .find = mem_find_none,
	.release = mem_release,
};

/* files: it passes for a store of files. */
TAP_USED static struct mem_store *mem_store_new(bool files)
{
	struct mem_store *m = mem_calloc(1, sizeof *m);

	m->base.ops = files ? &mem_file_ops : &mem_ops;
	pthread_mutex_init(&m->lock, NULL);
	return m;
}

#endif
