/* A stage's side of a store of KV blocks that is not well: lost, slow, busy, or without what it said that it has.  It
 * costs little. */
#include "tests/unit/kv_rig.h"

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
	kv_ask_end(ask(&r), false); /* it was there */
	kv_seq_reserve(&s, r.pool, COUNT);
	compute(&s, 5);
	st.has = 0;
	set(&st.fails, true);
	n = kv_keys(r.c, ids, COUNT, decoded, keys);
	kv_put_prompt(r.c, NULL, &s, ids, decoded, keys, n);
	for (int i = 0; i < 200 && !count_of(&st.has); i++)
		usleep(10000);
	set(&st.fails, false);
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

/* The faults: of blocks that the store said it had and did not give, one was put again in each second run; then all of
 * them were, sound or not. */
static void test_short(void)
{
	static const struct { const char *what; size_t puts, replaced, doubted; } want[] = {
		[TRUSTS] = { "a store that cannot look closely: all others are put again, in place of what is there",
			3, 3, 2 },
		[FINDS_SOUND] = { "one that can, and finds them sound: only the one that did not come", 1, 1, 2 },
		[FINDS_WRONG] = { "one that finds them wrong: they are put", 3, 1, 2 },
	};

	for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
		struct store_key keys[COUNT / KV_BLOCK + 1];
		struct kv_seq s = { 0 };
		struct kv_ask *a;
		struct rig r;

		open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
		put_all(&r, 5);
		reopen(&r, 64);
		st.gives = 2;
		st.doubts = (int)i;
		a = ask(&r);
		kv_seq_reserve(&s, r.pool, COUNT);
		if (!a || !kv_ask_fetch(a, &s, 0, decoded))
			tap_bail("nothing is fetched");
		until(&r, a, KV_ASK_FETCHES);
		tap_is_int((long long)kv_ask_arrived(a, 0, decoded), 2, "a get that comes short: two blocks");
		compute(&s, 5);
		kv_put_prompt(r.c, a, &s, ids, decoded, keys, kv_keys(r.c, ids, COUNT, decoded, keys));
		kv_client_flush(r.c, time_mono_ns() + (int64_t)10000000000);
		tap_ok(count_of(&st.puts) == want[i].puts && st.replaced == want[i].replaced &&
			st.doubted == want[i].doubted, "%s", want[i].what);
		kv_ask_end(a, false);
		kv_seq_clear(&s, r.pool);
		close_rig(&r);
	}
}

/* The fault: one that was busy was called slow, though nobody had waited. */
static void test_busy(void)
{
	struct kv_ask *a;
	struct rig r;
	int n = 0;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	put_all(&r, 5);
	reopen(&r, 64);
	st.gives = 2;
	st.busy = true;
	for (; n < 5 && (a = ask(&r)); n++) {
		struct kv_seq s = { 0 };

		kv_seq_reserve(&s, r.pool, COUNT);
		if (!kv_ask_fetch(a, &s, 0, decoded))
			tap_bail("nothing is fetched");
		until(&r, a, KV_ASK_FETCHES);
		kv_ask_end(a, false);
		kv_seq_clear(&s, r.pool);
	}
	tap_ok(n == 5 && !r.c->n.late && !r.c->n.losses, "a store that is busy in mid-get is neither slow nor lost");
	close_rig(&r);
}

/* Within ten seconds. */
static bool comes_back(struct rig *r)
{
	struct kv_ask *a = NULL;

	for (int i = 0; i < 1000 && !a; i++) {
		usleep(10000);
		a = kv_ask_new(r->c, ids, COUNT, decoded, 0);
	}
	kv_ask_end(a, false);
	return a != NULL;
}

/* Blocks that came. */
static size_t fetch_one(struct rig *r)
{
	struct kv_seq s = { 0 };
	struct kv_ask *a = ask(r);
	size_t n;

	kv_seq_reserve(&s, r->pool, COUNT);
	if (!a || !kv_ask_fetch(a, &s, 0, decoded))
		tap_bail("nothing is fetched");
	until(r, a, KV_ASK_FETCHES);
	n = kv_ask_arrived(a, 0, decoded);
	kv_ask_end(a, false);
	kv_seq_clear(&s, r->pool);
	return n;
}

static int64_t pause_of(struct rig *r)
{
	int64_t ns;

	pthread_mutex_lock(&r->c->lock);
	ns = r->c->lost ? r->c->pause_ns : 0;
	pthread_mutex_unlock(&r->c->lock);
	return ns;
}

/* The fault: one that knew what it had, and gave nothing, was lost and back with each prompt. */
static void test_get_fails(void)
{
	struct rig r;
	int64_t first = 0;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	put_all(&r, 5);
	reopen(&r, 64);
	set(&st.get_fails, true);
	tap_ok(fetch_one(&r) == 0 && (first = pause_of(&r)) > 0, "a store whose get fails is lost");
	usleep(2000000);
	tap_ok(!kv_ask_new(r.c, ids, COUNT, decoded, 0) && count_of(&st.gets) > 1,
		"and so it is until a get is answered, which is tried by itself");
	set(&st.get_fails, false);
	tap_ok(comes_back(&r) && r.c->n.losses == 1, "then it is back");
	set(&st.get_fails, true);
	tap_ok(fetch_one(&r) == 0 && pause_of(&r) >= 4 * first, "lost before a prompt had its blocks: for longer");
	set(&st.get_fails, false);
	tap_ok(comes_back(&r) && fetch_one(&r) == 5, "back, and blocks come");
	set(&st.get_fails, true);
	tap_ok(fetch_one(&r) == 0 && pause_of(&r) == first, "lost after that: as the first time");
	close_rig(&r);
}

/* The fault: one that was just starting was lost for good, in a run that is short. */
static void test_coming(void)
{
	struct kv_ask *a;
	struct rig r;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	set(&st.fails, true);
	a = kv_ask_new(r.c, ids, COUNT, decoded, 0);
	usleep(200000);
	set(&st.fails, false);
	until(&r, a, KV_ASK_LOOKS);
	tap_ok(a->asked && !r.c->n.losses && count_of(&st.has) > 3,
		"a store that comes within --kv-timeout is not lost: asked %zu times", count_of(&st.has));
	kv_ask_end(a, false);
	close_rig(&r);
}

static void test_comes_late(bool at_all)
{
	struct store_key keys[COUNT / KV_BLOCK + 1];
	struct kv_seq s = { 0 };
	struct rig r;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	set(&st.fails, true);
	kv_seq_reserve(&s, r.pool, COUNT);
	compute(&s, 5);
	kv_put_prompt(r.c, NULL, &s, ids, decoded, keys, kv_keys(r.c, ids, COUNT, decoded, keys));
	for (int i = 0; i < 500 && !pause_of(&r); i++)
		usleep(10000);
	set(&st.fails, !at_all);
	kv_client_flush(r.c, time_mono_ns() + (int64_t)10000000000);
	tap_is_int((long long)st.n, at_all ? 5 : 0, at_all ? "what was to be written is offered once more at the end" :
		"where it has not come it is given up");
	tap_is_int((long long)r.c->writing, 0, "nothing waits any more");
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

static bool state_has(struct rig *r, const char *what)
{
	struct buf b = { 0 };
	struct jw w;
	bool has;

	jw_init(&w, &b);
	jw_obj(&w);
	kv_client_state(r->c, &w);
	jw_obj_end(&w);
	has = strstr(b.p, what) != NULL;
	buf_free(&b);
	return has;
}

/* The fault: a store that says what it has and then gives nothing was lost, and back, with each prompt. */
static void test_frozen(void)
{
	struct kv_seq s = { 0 };
	struct kv_ask *a;
	struct rig r;
	int n = 0;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	put_all(&r, 5);
	reopen(&r, 64);
	set(&st.frozen, true);
	while (n < 10 && late_one(&r, false))
		n++;
	tap_ok(n == 3 && state_has(&r, "\"slow\":true") && state_has(&r, "\"losses\":0"),
		"one that gives nothing in time is slow, not lost: %d fetches", n);
	usleep(600000);
	until(&r, a = ask(&r), KV_ASK_LOOKS);
	kv_seq_reserve(&s, r.pool, COUNT);
	if (!kv_ask_fetch(a, &s, 0, decoded))
		tap_bail("nothing is fetched");
	until(&r, a, KV_ASK_FETCHES);
	tap_ok(!r.c->trying && !ask(&r), "it is tried with one prompt, and late at once, not when the prompt ends");
	kv_ask_end(a, false);
	kv_seq_clear(&s, r.pool);
	set(&st.frozen, false);
	usleep(1100000);
	tap_ok(late_one(&r, false) && late_one(&r, false) && state_has(&r, "\"slow\":false"),
		"and well when that has its blocks");
	close_rig(&r);
}

static size_t put_five(struct rig *r)
{
	struct store_key keys[COUNT / KV_BLOCK + 1];
	struct kv_seq s = { 0 };
	size_t was = count_of(&st.puts);

	kv_seq_reserve(&s, r->pool, COUNT);
	compute(&s, 5);
	kv_put_prompt(r->c, NULL, &s, ids, decoded, keys, kv_keys(r->c, ids, COUNT, decoded, keys));
	for (int i = 0; i < 500 && !state_has(r, "\"writing_blocks\":0"); i++)
		usleep(20000);
	kv_seq_clear(&s, r->pool);
	return count_of(&st.puts) - was;
}

static void test_frozen_puts(void)
{
	struct kv_ask *a;
	struct rig r;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	set(&st.frozen, true);
	tap_is_int((long long)put_five(&r), 1, "a store that is late with a block is offered no more,");
	tap_is_int((long long)put_five(&r), 0, "for a while,");
	a = ask(&r);
	tap_ok(a && state_has(&r, "\"losses\":0"), "but asked");
	kv_ask_end(a, false);
	usleep(600000);
	tap_is_int((long long)put_five(&r), 1, "then one,");
	set(&st.frozen, false);
	usleep(1100000);
	tap_is_int((long long)put_five(&r), 5, "and all when it takes them again");
	close_rig(&r);
}

int main(void)
{
	log_init("test", 0, LOG_ERROR);
	test_lost();
	test_busy();
	test_get_fails();
	test_coming();
	test_comes_late(true);
	test_comes_late(false);
	test_slow();
	test_frozen();
	test_frozen_puts();
	test_short();
	test_offered_again();
	forget_all();
	return tap_done();
}
