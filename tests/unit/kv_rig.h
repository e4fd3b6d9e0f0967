/* A client of a store of KV blocks (serve/kv_client.h) over a store that does as the test says. */
#ifndef DS_TESTS_KV_RIG_H
#define DS_TESTS_KV_RIG_H

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "serve/kv_client_impl.h"
#include "store/store.h"
#include "tests/unit/tap.h"

enum {
	LATENT = 24, ROPE = 8, DIM = LATENT + ROPE, LAYERS = 2,
	BLOCK = LAYERS * KV_BLOCK * DIM * 4, MOST = 64, COUNT = 330
};

/* ---- the store ---- */

struct held { struct store_key key; uint8_t *frame; size_t n; };

static struct {
	pthread_mutex_t lock;
	pthread_cond_t news;
	struct held items[MOST];
	size_t n;
	bool fails, full;        /* each call does; puts do */
	bool get_fails;          /* gets do */
	bool busy;               /* a get that gives no more says so */
	bool frozen;             /* gets and puts have no answer until their deadline */
	int64_t deadline;
	bool shut;               /* puts, and gets between place and done, wait until it is open */
	int64_t hurry;           /* a call that waits gives up then */
	size_t gives;            /* items of a get, whatever it has; 0: all */
	enum { TRUSTS, FINDS_SOUND, FINDS_WRONG } doubts; /* what it does of what is doubted */
	size_t replaced;
	size_t waiting, has, gets, puts, dels, doubted;
} st = { .lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER };

TAP_USED static void gate(bool shut)
{
	pthread_mutex_lock(&st.lock);
	st.shut = shut;
	pthread_cond_broadcast(&st.news);
	pthread_mutex_unlock(&st.lock);
}

TAP_USED static void pass(void)
{
	pthread_mutex_lock(&st.lock);
	st.waiting++;
	pthread_cond_broadcast(&st.news);
	while (st.shut && !(st.hurry && st.hurry <= time_mono_ns()))
		pthread_cond_wait(&st.news, &st.lock);
	st.waiting--;
	pthread_mutex_unlock(&st.lock);
}

TAP_USED static void until_waiting(void)
{
	pthread_mutex_lock(&st.lock);
	while (!st.waiting)
		pthread_cond_wait(&st.news, &st.lock);
	pthread_mutex_unlock(&st.lock);
}

TAP_USED static int counted(size_t *counter, struct ds_err *err)
{
	int rc = 0;

	pthread_mutex_lock(&st.lock);
	++*counter;
	if (st.fails)
		rc = err_set(err, DS_UNAVAILABLE, "it does as the test says");
	pthread_mutex_unlock(&st.lock);
	return rc;
}

TAP_USED static size_t count_of(const size_t *counter)
{
	size_t n;

	pthread_mutex_lock(&st.lock);
	n = *counter;
	pthread_mutex_unlock(&st.lock);
	return n;
}

TAP_USED static struct held *find(const struct store_key *key)
{
	for (size_t i = 0; i < st.n; i++)
		if (store_key_equal(&st.items[i].key, key))
			return &st.items[i];
	return NULL;
}

TAP_USED static void forget_all(void)
{
	for (size_t i = 0; i < st.n; i++)
		free(st.items[i].frame);
	st.n = 0;
}

int store_open(struct store **s, const char *addr, const struct store_options *o, struct ds_err *err)
{
	(void)addr;
	(void)o;
	(void)err;
	*s = (struct store *)&st;
	return 0;
}

void store_close(struct store *s) { (void)s; }

int store_begin(struct store_session **ss, struct store *s, struct ds_err *err)
{
	(void)err;
	*ss = (struct store_session *)s;
	return 0;
}

void store_end(struct store_session *ss) { (void)ss; }
void store_deadline(struct store_session *ss, int64_t ns)
{
	(void)ss;
	pthread_mutex_lock(&st.lock);
	st.deadline = ns;
	pthread_mutex_unlock(&st.lock);
}

static int freeze(struct ds_err *err)
{
	int64_t end;
	bool is;

	do {
		pthread_mutex_lock(&st.lock);
		is = st.frozen;
		end = st.hurry && st.hurry < st.deadline ? st.hurry : st.deadline;
		pthread_mutex_unlock(&st.lock);
	} while (is && time_mono_ns() < end && !usleep(2000));
	return is ? err_set(err, DS_TEMP, "no answer in time") : 0;
}

void store_hurry(struct store_session *ss, int64_t ns)
{
	(void)ss;
	pthread_mutex_lock(&st.lock);
	st.hurry = ns;
	pthread_cond_broadcast(&st.news);
	pthread_mutex_unlock(&st.lock);
}

int store_has(struct store_session *ss, const struct store_key *keys, size_t n, uint8_t *here, size_t *prefix,
	struct ds_err *err)
{
	bool run = true;

	(void)ss;
	*prefix = 0;
	for (size_t i = 0; i < n; i++) {
		bool is = find(&keys[i]) != NULL;

		run &= is;
		*prefix += run;
		if (here)
			here[i] = is;
	}
	return counted(&st.has, err);
}

int store_get(struct store_session *ss, const struct store_key *keys, size_t n, const struct store_sink *sink,
	size_t *got, struct ds_err *err)
{
	struct frame_parser *p;
	struct store_item item;
	struct frame f;
	int rc = counted(&st.gets, err);

	(void)ss;
	*got = 0;
	pthread_mutex_lock(&st.lock);
	if (st.get_fails)
		rc = err_set(err, DS_UNAVAILABLE, "no get");
	pthread_mutex_unlock(&st.lock);
	if (rc || freeze(err) || frame_parser_new(&p, err))
		return err->code;
	for (; *got < n && find(&keys[*got]) && (!st.gives || *got < st.gives); ++*got) {
		struct held *h = find(&keys[*got]);
		void *to;

		if (frame_parse(p, h->frame, h->n, &f, err) || store_item_get(&f, &item, err))
			tap_bail("%s", err->text);
		to = sink->place(sink->ctx, *got, &item);
		if (!to)
			break;
		pass();
		memcpy(to, f.data, item.size);
		if (!sink->done(sink->ctx, *got))
			break;
	}
	frame_parser_free(p);
	return st.busy && *got < n ? err_set(err, DS_TEMP, "it is busy") : 0;
}

/* Under p->key, whatever the meta says. */
TAP_USED static void hold(const struct store_put *p)
{
	struct store_item item = { .key = p->key, .size = p->iov->iov_len };
	struct meta_builder *b = meta_new();
	struct frame_front front;
	struct frame_writer *w;
	struct held *h = find(&p->key);
	struct ds_err err;

	if (h)
		free(h->frame);
	else
		h = &st.items[st.n++];
	store_item_put(b, &item);
	meta_put_built(b, p->meta);
	if (frame_writer_new(&w, -1, "item", &err) ||
	    frame_encode(w, FRAME_STORE, 0, 0, 0, b, p->iov, p->iovs, true, &front, &err))
		tap_bail("%s", err.text);
	h->key = p->key;
	h->n = front.n + item.size + front.pad;
	h->frame = mem_aligned(h->n);
	memcpy(h->frame, front.p, front.n);
	memcpy(h->frame + front.n, p->iov->iov_base, item.size);
	frame_writer_free(w);
	meta_free(b);
}

int store_put(struct store_session *ss, const struct store_put *p, enum store_put_result *how, struct ds_err *err)
{
	int rc = counted(&st.puts, err);

	st.replaced += p->replace;

	(void)ss;
	pass();
	if (rc || freeze(err))
		return err->code;
	if (st.full)
		return err_set(err, DS_IO, "the disk is full");
	*how = find(&p->key) ? STORE_ALREADY : STORE_STORED;
	if (*how == STORE_STORED)
		hold(p);
	return 0;
}

bool store_doubt(struct store_session *ss, const struct store_key *key)
{
	struct ds_err err;
	bool was;

	st.doubted++;
	if (st.doubts == FINDS_WRONG)
		store_del(ss, key, &was, &err);
	return st.doubts != TRUSTS;
}

int store_del(struct store_session *ss, const struct store_key *key, bool *was, struct ds_err *err)
{
	struct held *h = find(key);

	(void)ss;
	*was = h != NULL;
	if (h) {
		free(h->frame);
		*h = st.items[--st.n];
	}
	return counted(&st.dels, err);
}

TAP_USED static void set(bool *what, bool to)
{
	pthread_mutex_lock(&st.lock);
	*what = to;
	pthread_mutex_unlock(&st.lock);
}

/* ---- a stage ---- */

static uint32_t ids[COUNT];
static uint8_t decoded[COUNT / KV_BLOCK + 1];

struct rig { struct kv_pool *pool; struct kv_client *c; };

TAP_USED static void open_rig(struct rig *r, size_t tokens, enum block_form form, size_t write_bytes)
{
	struct kv_client_options o = { .addr = "test:", .timeout_ns = 1000000000, .write_bytes = write_bytes,
		.layout = { .model = "m", .arith = "a", .kernels = "k", .type = DT_F32, .layers = LAYERS,
			.latent = LATENT, .rope = ROPE, .tokens = tokens, .form = form } };
	struct ds_err err;

	forget_all();
	st.hurry = 0;
	st.gives = st.replaced = st.doubted = 0;
	st.doubts = TRUSTS;
	st.busy = st.get_fails = false;
	st.has = st.gets = st.puts = st.dels = 0;
	st.fails = st.full = st.shut = false;
	st.frozen = false;
	memset(decoded, KV_BLOCK, sizeof(decoded));
	for (uint32_t i = 0; i < COUNT; i++)
		ids[i] = 3 * i;
	if (kv_pool_new(&r->pool, DT_F32, LAYERS, DIM, 8 * BLOCK, &err))
		tap_bail("%s", err.text);
	o.pool = r->pool;
	if (kv_client_open(&r->c, &o, &err))
		tap_bail("%s", err.text);
}

TAP_USED static void close_rig(struct rig *r)
{
	kv_client_close(r->c);
	tap_is_int((long long)r->pool->used, 0, "no block of the pool is left behind");
	kv_pool_free(r->pool);
}

TAP_USED static float value(size_t page, size_t i) { return (float)(page * 1000) + (float)(i % 777) * 0.25f; }

TAP_USED static void compute(struct kv_seq *s, size_t pages)
{
	for (size_t p = 0; p < pages; p++)
		for (size_t i = 0; i < LAYERS * KV_BLOCK * DIM; i++)
			((float *)s->pages[p])[i] = value(p, i);
}

TAP_USED static size_t wrong_pages(const struct kv_seq *s, size_t first, size_t last)
{
	size_t wrong = 0;

	for (size_t p = first; p < last; p++)
		for (size_t i = 0; i < LAYERS * KV_BLOCK * DIM; i++)
			if (((float *)s->pages[p])[i] != value(p, i)) {
				wrong++;
				break;
			}
	return wrong;
}

/* Until it says that it is over, ten seconds at most. */
TAP_USED static void until(struct rig *r, const struct kv_ask *a, enum kv_ask_state not)
{
	struct pollfd p = { kv_client_bell(r->c), POLLIN, 0 };
	int64_t end = time_mono_ns() + (int64_t)10000000000;

	while (kv_ask_state(a) == not && time_mono_ns() < end) {
		poll(&p, 1, 100);
		kv_client_rung(r->c);
	}
}

TAP_USED static void put_all(struct rig *r, size_t pages)
{
	struct store_key keys[COUNT / KV_BLOCK + 1];
	struct kv_seq s = { 0 };

	kv_seq_reserve(&s, r->pool, pages * KV_BLOCK);
	compute(&s, pages);
	kv_put_prompt(r->c, NULL, &s, ids, decoded, keys, kv_keys(r->c, ids, pages * KV_BLOCK, decoded, keys));
	kv_client_flush(r->c, time_mono_ns() + (int64_t)10000000000);
	kv_seq_clear(&s, r->pool);
}

/* After kv_client_flush nothing is asked: another client for what follows. */
TAP_USED static void reopen(struct rig *r, size_t tokens)
{
	struct held kept[MOST];
	size_t n = st.n;

	memcpy(kept, st.items, sizeof(kept));
	st.n = 0;
	kv_client_close(r->c);
	kv_pool_free(r->pool);
	open_rig(r, tokens, BLOCK_EXACT, 64 * BLOCK);
	memcpy(st.items, kept, sizeof(kept));
	st.n = n;
}

TAP_USED static struct kv_ask *ask(struct rig *r)
{
	struct kv_ask *a = kv_ask_new(r->c, ids, COUNT, decoded, 0);

	if (a)
		until(r, a, KV_ASK_LOOKS);
	return a;
}

#endif
