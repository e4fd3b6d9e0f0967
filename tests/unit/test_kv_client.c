/* A stage's side of a store of KV blocks, over a store that does as the test says: what arrives is right, late bytes go
 * nowhere, failures cost little. */
#include "tap.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "serve/kv_client_impl.h"
#include "serve/prompt.h"
#include "store/store.h"

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
	bool shut;               /* puts, and gets between place and done, wait until it is open */
	int64_t hurry;           /* a call that waits gives up then */
	size_t gives;            /* items of a get, whatever it has; 0: all */
	size_t replaced;
	size_t waiting, has, gets, puts, dels;
} st = { .lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER };

static void gate(bool shut)
{
	pthread_mutex_lock(&st.lock);
	st.shut = shut;
	pthread_cond_broadcast(&st.news);
	pthread_mutex_unlock(&st.lock);
}

static void pass(void)
{
	pthread_mutex_lock(&st.lock);
	st.waiting++;
	pthread_cond_broadcast(&st.news);
	while (st.shut && !(st.hurry && st.hurry <= time_mono_ns()))
		pthread_cond_wait(&st.news, &st.lock);
	st.waiting--;
	pthread_mutex_unlock(&st.lock);
}

static void until_waiting(void)
{
	pthread_mutex_lock(&st.lock);
	while (!st.waiting)
		pthread_cond_wait(&st.news, &st.lock);
	pthread_mutex_unlock(&st.lock);
}

static int counted(size_t *counter, struct ds_err *err)
{
	int rc = 0;

	pthread_mutex_lock(&st.lock);
	++*counter;
	if (st.fails)
		rc = err_set(err, DS_UNAVAILABLE, "it does as the test says");
	pthread_mutex_unlock(&st.lock);
	return rc;
}

static size_t count_of(const size_t *counter)
{
	size_t n;

	pthread_mutex_lock(&st.lock);
	n = *counter;
	pthread_mutex_unlock(&st.lock);
	return n;
}

static struct held *find(const struct store_key *key)
{
	for (size_t i = 0; i < st.n; i++)
		if (store_key_equal(&st.items[i].key, key))
			return &st.items[i];
	return NULL;
}

static void forget_all(void)
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
void store_deadline(struct store_session *ss, int64_t ns) { (void)ss, (void)ns; }

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
	if (rc || frame_parser_new(&p, err))
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
	return 0;
}

/* Under p->key, whatever the meta says. */
static void hold(const struct store_put *p)
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
	if (rc)
		return rc;
	if (st.full)
		return err_set(err, DS_IO, "the disk is full");
	*how = find(&p->key) ? STORE_ALREADY : STORE_STORED;
	if (*how == STORE_STORED)
		hold(p);
	return 0;
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

/* ---- a stage ---- */

static uint32_t ids[COUNT];
static uint8_t decoded[COUNT / KV_BLOCK + 1];

struct rig { struct kv_pool *pool; struct kv_client *c; };

static void open_rig(struct rig *r, size_t tokens, enum block_form form, size_t write_bytes)
{
	struct kv_client_options o = { .addr = "test:", .timeout_ns = 1000000000, .write_bytes = write_bytes,
		.layout = { .model = "m", .arith = "a", .kernels = "k", .type = DT_F32, .layers = LAYERS,
			.latent = LATENT, .rope = ROPE, .tokens = tokens, .form = form } };
	struct ds_err err;

	forget_all();
	st.hurry = 0;
	st.gives = st.replaced = 0;
	st.has = st.gets = st.puts = st.dels = 0;
	st.fails = st.full = st.shut = false;
	memset(decoded, KV_BLOCK, sizeof(decoded));
	for (uint32_t i = 0; i < COUNT; i++)
		ids[i] = 3 * i;
	if (kv_pool_new(&r->pool, DT_F32, LAYERS, DIM, 8 * BLOCK, &err))
		tap_bail("%s", err.text);
	o.pool = r->pool;
	if (kv_client_open(&r->c, &o, &err))
		tap_bail("%s", err.text);
}

static void close_rig(struct rig *r)
{
	kv_client_close(r->c);
	tap_is_int((long long)r->pool->used, 0, "no block of the pool is left behind");
	kv_pool_free(r->pool);
}

static float value(size_t page, size_t i) { return (float)(page * 1000) + (float)(i % 777) * 0.25f; }

static void compute(struct kv_seq *s, size_t pages)
{
	for (size_t p = 0; p < pages; p++)
		for (size_t i = 0; i < LAYERS * KV_BLOCK * DIM; i++)
			((float *)s->pages[p])[i] = value(p, i);
}

static size_t wrong_pages(const struct kv_seq *s, size_t first, size_t last)
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
static void until(struct rig *r, const struct kv_ask *a, enum kv_ask_state not)
{
	struct pollfd p = { kv_client_bell(r->c), POLLIN, 0 };
	int64_t end = time_mono_ns() + (int64_t)10000000000;

	while (kv_ask_state(a) == not && time_mono_ns() < end) {
		poll(&p, 1, 100);
		kv_client_rung(r->c);
	}
}

static void put_all(struct rig *r, size_t pages)
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
static void reopen(struct rig *r, size_t tokens)
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

static struct kv_ask *ask(struct rig *r)
{
	struct kv_ask *a = kv_ask_new(r->c, ids, COUNT, decoded, 0);

	if (a)
		until(r, a, KV_ASK_LOOKS);
	return a;
}

static void test_fetch(size_t tokens)
{
	struct kv_seq s = { 0 };
	struct kv_ask *a;
	struct rig r;
	size_t whole = COUNT / tokens * (tokens / KV_BLOCK);

	open_rig(&r, tokens, BLOCK_EXACT, 64 * BLOCK);
	a = ask(&r);
	tap_ok(a && kv_ask_state(a) == KV_ASK_OVER && kv_ask_found(a) == 0, "blocks of %zu: an empty store has nothing",
		tokens);
	kv_ask_end(a, false);
	put_all(&r, COUNT / KV_BLOCK);
	reopen(&r, tokens);
	a = ask(&r);
	tap_ok(a && kv_ask_state(a) == KV_ASK_FOUND && kv_ask_found(a) == whole, "what was put is found");
	kv_seq_reserve(&s, r.pool, COUNT);
	memset(s.pages[0], 7, BLOCK);
	tap_ok(kv_ask_fetch(a, &s, 1, decoded), "it can be fetched, from its second page on");
	until(&r, a, KV_ASK_FETCHES);
	tap_ok(kv_ask_arrived(a, 1, decoded) == whole && wrong_pages(&s, 1, whole) == 0, "it arrives as it was put");
	tap_ok(*(uint8_t *)s.pages[0] == 7, "the page that was there is not written");
	kv_ask_end(a, false);
	kv_seq_clear(&s, r.pool);
	close_rig(&r);
}

/* The thread is between the beginning and the end of a block when the stage gives up and gives everything back. */
static void test_late(void)
{
	struct kv_seq s = { 0 }, others = { 0 };
	struct kv_ask *a;
	struct rig r;
	void *third;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	put_all(&r, 5);
	reopen(&r, 64);
	a = ask(&r);
	kv_seq_reserve(&s, r.pool, COUNT);
	third = s.pages[2];
	gate(true);
	kv_ask_fetch(a, &s, 2, decoded);
	until_waiting();
	kv_ask_end(a, true);
	kv_seq_clear(&s, r.pool);
	tap_is_int((long long)r.pool->used, 1,
		"of what was given up the block that is being written stays, and no other");
	tap_ok(kv_client_holds(r.c), "and that is known");
	kv_seq_reserve(&others, r.pool, 7 * KV_BLOCK);
	for (size_t i = 0; i < others.count; i++) {
		memset(others.pages[i], 0x55, BLOCK);
		if (others.pages[i] == third)
			third = NULL;
	}
	tap_ok(others.count == 7 && third, "nobody else gets it");
	gate(false);
	for (int i = 0; i < 100 && kv_client_holds(r.c); i++) {
		poll(&(struct pollfd){ kv_client_bell(r.c), POLLIN, 0 }, 1, 100);
		kv_client_rung(r.c);
	}
	tap_is_int((long long)r.pool->used, 7, "when it is written it is free");
	third = NULL;
	for (size_t i = 0; i < others.count; i++)
		for (size_t k = 0; k < BLOCK; k++)
			if (((uint8_t *)others.pages[i])[k] != 0x55)
				third = others.pages[i];
	tap_ok(!third, "nobody's memory was written to");
	kv_seq_clear(&others, r.pool);
	close_rig(&r);
}

/* A prompt whose time to wait for the store is over in the middle of a block goes on in other memory. */
static void test_prompt(void)
{
	struct kv_seq s = { 0 };
	struct prompt p = { .ids = ids, .count = COUNT, .kv = &s };
	struct work w = { .store_timeout_ns = 50000000 };
	enum prompt_store is = PROMPT_WAITS;
	struct ds_err err;
	struct rig r;
	void *first;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	put_all(&r, 5);
	reopen(&r, 64);
	w.store = r.c;
	w.pool = r.pool;
	prompt_ask(&w, &p);
	for (int i = 0; i < 100 && (is = prompt_store(&w, &p, false)) == PROMPT_WAITS; i++)
		poll(&(struct pollfd){ kv_client_bell(r.c), POLLIN, 0 }, 1, 100);
	tap_ok(is == PROMPT_FETCH && prompt_fetch_blocks(&p) == 5, "a prompt in the store can be fetched");
	prompt_begin(&w, &p, &err);
	kv_seq_reserve(&s, r.pool, COUNT);
	first = s.pages[0];
	gate(true);
	prompt_fetch(&w, &p);
	until_waiting();
	tap_ok(prompt_store(&w, &p, false) == PROMPT_WAITS, "it waits, as long as it could not be computed");
	for (int i = 0; i < 100 && (is = prompt_store(&w, &p, true)) == PROMPT_WAITS; i++) {
		poll(&(struct pollfd){ kv_client_bell(r.c), POLLIN, 0 }, 1, 1000);
		kv_client_rung(r.c);
	}
	tap_ok(is == PROMPT_READY && s.length == 0 && p.hit == 0, "and then for --kv-timeout, woken by the bell");
	kv_seq_reserve(&s, r.pool, COUNT);
	for (size_t i = 0; i < s.count; i++)
		if (s.pages[i] == first)
			first = NULL;
	tap_ok(first && s.count == 6, "it is computed in blocks to which nobody else writes");
	gate(false);
	prompt_end(&p);
	kv_seq_clear(&s, r.pool);
	kv_client_flush(r.c, time_mono_ns());
	close_rig(&r);
}

static void test_forged(bool finite)
{
	struct kv_seq s = { 0 };
	struct block_layout l = { .model = "m", .arith = "a", .kernels = "k", .type = DT_F32, .layers = LAYERS,
		.latent = LATENT, .rope = ROPE, .tokens = 64 };
	struct store_key keys[COUNT / KV_BLOCK + 1];
	struct meta_builder *b = meta_new();
	float *rows = mem_aligned(BLOCK);
	struct iovec iov = { rows, BLOCK };
	struct store_put p = { .meta = b, .iov = &iov, .iovs = 1 };
	struct block_id id;
	struct kv_ask *a;
	struct rig r;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	put_all(&r, 5);
	kv_keys(r.c, ids, COUNT, decoded, keys);
	reopen(&r, 64);
	id = (struct block_id){ .parent = keys[1], .ids = ids + 128, .first = 128, .decoded = 64 };
	p.key = keys[2];
	ids[140] += finite; /* another token under the right key */
	rows[99] = finite ? 1.0f : NAN;
	block_meta_put(b, &l, &id);
	ids[140] -= finite;
	hold(&p);
	a = ask(&r);
	kv_seq_reserve(&s, r.pool, COUNT);
	kv_ask_fetch(a, &s, 0, decoded);
	until(&r, a, KV_ASK_FETCHES);
	tap_is_int((long long)kv_ask_arrived(a, 0, decoded), 2,
		finite ? "a block of other tokens under the right key ends what is taken" : "so does one with a NaN");
	tap_ok(count_of(&st.dels) == 1, "and the store is to forget it");
	kv_ask_end(a, false);
	kv_seq_clear(&s, r.pool);
	close_rig(&r);
	meta_free(b);
	free(rows);
}

static void test_lost(void)
{
	struct kv_seq s = { 0 };
	struct kv_ask *a;
	struct rig r;
	size_t has;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	st.fails = true;
	a = ask(&r);
	tap_ok(a && kv_ask_state(a) == KV_ASK_OVER && kv_ask_found(a) == 0, "a store that fails has nothing");
	kv_ask_end(a, false);
	has = count_of(&st.has);
	tap_ok(!kv_ask_new(r.c, ids, COUNT, decoded, 0), "after that it is not asked");
	for (int i = 0; i < 200 && count_of(&st.has) == has; i++)
		usleep(20000);
	tap_ok(count_of(&st.has) > has && !kv_ask_new(r.c, ids, COUNT, decoded, 0), "it is tried again, by itself");
	put_all(&r, 5);
	tap_ok(count_of(&st.puts) == 0, "nor is it written to");
	kv_seq_clear(&s, r.pool);
	close_rig(&r);
}

/* The fault: what was taken, and lost with the store, was never offered again. */
static void test_offered_again(void)
{
	struct store_key keys[COUNT / KV_BLOCK + 1], no = { { 0 } };
	struct kv_seq s = { 0 };
	struct kv_ask *a = NULL;
	struct rig r;
	size_t n;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	kv_seq_reserve(&s, r.pool, COUNT);
	compute(&s, 5);
	st.fails = true;
	n = kv_keys(r.c, ids, COUNT, decoded, keys);
	kv_put_prompt(r.c, NULL, &s, ids, decoded, keys, n);
	for (int i = 0; i < 200 && !count_of(&st.has); i++)
		usleep(10000);
	pthread_mutex_lock(&st.lock);
	st.fails = false;
	pthread_mutex_unlock(&st.lock);
	for (int i = 0; i < 500 && !a; i++) {
		usleep(10000);
		a = kv_ask_new(r.c, ids, COUNT, decoded, 0);
	}
	kv_ask_end(a, false);
	for (size_t b = 0; b < n; b++) {
		struct block_id id = kv_id(r.c, keys, ids, b, KV_BLOCK);

		no = kv_put(r.c, &id, s.pages + b);
	}
	tap_ok(store_key_equal(&no, &keys[n - 1]), "the keys are the prompt's");
	kv_client_flush(r.c, time_mono_ns() + (int64_t)10000000000);
	tap_is_int((long long)st.n, 5, "blocks that were taken while the store was lost are offered again");
	kv_seq_clear(&s, r.pool);
	close_rig(&r);
}

/* The fault: of blocks that the store said it had and did not give, one was put again in each second run. */
static void test_short(void)
{
	struct store_key keys[COUNT / KV_BLOCK + 1];
	struct kv_seq s = { 0 };
	struct kv_ask *a;
	struct rig r;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	put_all(&r, 5);
	reopen(&r, 64);
	st.gives = 2;
	a = ask(&r);
	kv_seq_reserve(&s, r.pool, COUNT);
	if (!a || !kv_ask_fetch(a, &s, 0, decoded))
		tap_bail("nothing is fetched");
	until(&r, a, KV_ASK_FETCHES);
	tap_is_int((long long)kv_ask_arrived(a, 0, decoded), 2, "a get that comes short: two blocks");
	compute(&s, 5);
	kv_put_prompt(r.c, a, &s, ids, decoded, keys, kv_keys(r.c, ids, COUNT, decoded, keys));
	kv_client_flush(r.c, time_mono_ns() + (int64_t)10000000000);
	tap_ok(count_of(&st.puts) == 3 && st.replaced == 3, "all others are put again, in place of what is there");
	kv_ask_end(a, false);
	kv_seq_clear(&s, r.pool);
	close_rig(&r);
}

/* A fetch that is late, as its prompt sees it; false: the store was not asked. */
static bool late_one(struct rig *r, bool late)
{
	struct kv_seq s = { 0 };
	struct kv_ask *a = ask(r);

	if (!a)
		return false;
	kv_seq_reserve(&s, r->pool, COUNT);
	gate(late);
	if (!kv_ask_fetch(a, &s, 0, decoded))
		tap_bail("nothing is fetched");
	if (late)
		until_waiting();
	else
		until(r, a, KV_ASK_FETCHES);
	kv_ask_end(a, late);
	gate(false);
	kv_seq_clear(&s, r->pool);
	return true;
}

/* The fault: each prompt waited for a slow store, for ever. */
static void test_slow(void)
{
	struct kv_ask *a;
	struct rig r;
	int n = 0;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	put_all(&r, 5);
	reopen(&r, 64);
	while (n < 10 && late_one(&r, true))
		n++;
	tap_is_int(n, 3, "a store that was late three times in a row is left alone");
	usleep(600000);
	a = ask(&r);
	tap_ok(a && !ask(&r), "after a while one prompt asks it");
	kv_ask_end(a, false);
	tap_ok(late_one(&r, true) && !ask(&r), "which is late, too: so it is left alone again,");
	usleep(700000);
	tap_ok(!ask(&r), "for longer");
	usleep(500000);
	tap_ok(late_one(&r, false), "the next one has its blocks in time");
	n = 0;
	while (n < 10 && late_one(&r, false))
		n++;
	tap_is_int(n, 10, "then all ask it");
	close_rig(&r);
}

static void test_ending(void)
{
	struct kv_seq s = { 0 };
	struct kv_ask *a;
	struct rig r;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	put_all(&r, 5);
	reopen(&r, 64);
	a = ask(&r);
	kv_seq_reserve(&s, r.pool, COUNT);
	gate(true);
	alarm(20);
	if (!a || !kv_ask_fetch(a, &s, 0, decoded))
		tap_bail("nothing is fetched");
	until_waiting();
	kv_ask_end(a, true);
	kv_seq_clear(&s, r.pool);
	close_rig(&r);
	alarm(0);
	tap_ok(true, "an end does not wait for the call of the store that goes on");
}

static void test_writes(void)
{
	struct kv_ask *a;
	struct store_key keys[COUNT / KV_BLOCK + 1];
	struct kv_seq s = { 0 };
	struct rig r;

	open_rig(&r, 64, BLOCK_EXACT, 2 * BLOCK);
	gate(true);
	kv_seq_reserve(&s, r.pool, COUNT);
	compute(&s, 5);
	kv_put_prompt(r.c, NULL, &s, ids, decoded, keys, kv_keys(r.c, ids, COUNT, decoded, keys));
	memset(s.pages[0], 0, BLOCK); /* its copies are what is written */
	memset(s.pages[1], 0, BLOCK);
	gate(false);
	kv_client_flush(r.c, time_mono_ns() + (int64_t)10000000000);
	tap_is_int((long long)st.n, 2, "what is over the limit on memory is not written");
	kv_seq_clear(&s, r.pool);
	close_rig(&r);

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	kv_seq_reserve(&s, r.pool, COUNT);
	compute(&s, 5);
	((float *)s.pages[3])[7] = INFINITY;
	kv_put_prompt(r.c, NULL, &s, ids, decoded, keys, kv_keys(r.c, ids, COUNT, decoded, keys));
	kv_put_prompt(r.c, NULL, &s, ids, decoded, keys, kv_keys(r.c, ids, COUNT, decoded, keys));
	kv_client_flush(r.c, time_mono_ns() + (int64_t)10000000000);
	tap_ok(st.n == 4 && count_of(&st.puts) == 4, "rows that are no numbers are not written, nor anything twice");
	kv_seq_clear(&s, r.pool);
	close_rig(&r);

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	st.full = true;
	kv_seq_reserve(&s, r.pool, COUNT);
	compute(&s, 5);
	kv_put_prompt(r.c, NULL, &s, ids, decoded, keys, kv_keys(r.c, ids, COUNT, decoded, keys));
	for (int i = 0; i < 500 && count_of(&st.puts) < 5; i++)
		usleep(10000);
	a = ask(&r);
	tap_ok(count_of(&st.puts) == 5 && a && st.n == 0, "a store that cannot write is offered blocks, and asked");
	kv_ask_end(a, false);
	kv_seq_clear(&s, r.pool);
	close_rig(&r);
}

int main(void)
{
	log_init("test", 0, LOG_ERROR);
	test_fetch(64);
	test_fetch(128);
	test_late();
	test_prompt();
	test_forged(true);
	test_forged(false);
	test_lost();
	test_ending();
	test_slow();
	test_short();
	test_offered_again();
	test_writes();
	forget_all();
	return tap_done();
}
