/* Memory for payloads: its limit, who waits and in which order, who gives up. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "store/pool.h"
#include "tap.h"

enum { MB = 1 << 20 };

static struct store_pool pool;
static _Atomic int order[8], turns;

struct taker { int number; size_t n; int64_t wait_ns; int rc; pthread_t thread; };

static void *take(void *arg)
{
	struct taker *t = arg;
	struct store_buffer b;
	struct ds_err err;

	t->rc = store_pool_take(&pool, t->n, t->wait_ns ? time_mono_ns() + t->wait_ns : 0, &b, &err);
	if (!t->rc) {
		order[turns++] = t->number;
		memset(b.p, t->number, t->n);
		poll(NULL, 0, 20);
	}
	store_pool_give(&pool, &b);
	return NULL;
}

/* Until so many wait. */
static void waiting(size_t want)
{
	size_t n = want + 1;

	while (n != want) {
		poll(NULL, 0, 1);
		pthread_mutex_lock(&pool.lock);
		n = 0;
		for (const struct store_pool_wait *w = pool.first; w; w = w->next)
			n++;
		pthread_mutex_unlock(&pool.lock);
	}
}

static void start(struct taker *t, size_t n)
{
	pthread_create(&t->thread, NULL, take, t);
	waiting(n);
}

/* Small ones beside a large one that takes all; then as many as there is room, and a large one that waits. */
static void small_ones(struct store_buffer *large)
{
	struct store_buffer s[17], more;
	struct taker t = { 5, 3 * MB, 0, -1, 0 };
	struct ds_err err;
	size_t n = 0;

	while (n < 17 && !store_pool_take(&pool, MB / 4, 1, &s[n], &err))
		n++;
	tap_ok(n == 4, "small ones have a quarter beside it: %zu", n);
	store_pool_give(&pool, large);
	while (n < 17 && !store_pool_take(&pool, MB / 4, 1, &s[n], &err))
		n++;
	tap_ok(n == 16, "and all where there are no others: %zu", n);
	start(&t, 1);
	for (; n > 5; n--)
		store_pool_give(&pool, &s[n - 1]);
	tap_ok(store_pool_take(&pool, MB / 4, 1, &more, &err) == DS_TEMP, "but what a large one waits for");
	store_pool_give(&pool, &s[--n]);
	pthread_join(t.thread, NULL);
	tap_ok(!t.rc, "which is given it as soon as they have their quarter");
	while (n)
		store_pool_give(&pool, &s[--n]);
	tap_ok(store_pool_taken(&pool) == 0, "all are given back");
}

int main(void)
{
	struct store_buffer a, b, c;
	struct ds_err err = { 0 };
	struct taker t[4] = { { 1, 3 * MB, 0, -1, 0 }, { 2, 2 * MB, 0, -1, 0 }, { 3, MB, 2000000000, -1, 0 },
		{ 4, 3 * MB, 0, -1, 0 } };
	int64_t began;
	uint8_t *was;
	int rc;

	if (store_pool_open(&pool, 4 * MB, &err))
		tap_bail("%s", err.text);
	rc = store_pool_take(&pool, 2 * MB, 1, &a, &err);
	rc = rc ? rc : store_pool_take(&pool, MB, 1, &b, &err);
	tap_ok(!rc && a.p != b.p && (uintptr_t)a.p % 64 == 0 && store_pool_taken(&pool) == 3 * MB,
		"what fits is given");
	began = time_mono_ns();
	rc = store_pool_take(&pool, 2 * MB, began + 50000000, &c, &err);
	tap_ok(rc == DS_TEMP && !c.p && time_mono_ns() - began >= 50000000, "what does not fit waits, to no end: %s",
		err.text);
	start(&t[0], 1);
	start(&t[1], 2);
	start(&t[3], 3);
	tap_ok(turns == 0, "behind one that waits nobody is given any");
	start(&t[2], 4); /* would fit */
	waiting(3);
	store_pool_give(&pool, &a);
	store_pool_give(&pool, &b);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i].thread, NULL);
	tap_ok(!t[0].rc && !t[1].rc && t[2].rc == DS_TEMP && !t[3].rc, "one gives up, the others are given theirs");
	tap_ok(turns == 3 && order[0] == 1 && order[1] == 2 && order[2] == 4, "in turn");
	tap_ok(store_pool_taken(&pool) == 0, "nothing is taken in the end");
	rc = store_pool_take(&pool, 9 * MB, 1, &a, &err);
	tap_ok(!rc && store_pool_take(&pool, MB, 1, &b, &err) == DS_TEMP, "more than the limit is given alone");
	small_ones(&a);
	rc = store_pool_take(&pool, MB, 1, &a, &err);
	was = a.p;
	store_pool_give(&pool, &a);
	tap_ok(!a.p && !a.cap, "what was given back is no longer held");
	store_pool_give(&pool, &a);
	tap_ok(!rc && !store_pool_take(&pool, MB - 5000, 1, &a, &err) && a.p == was, "and is the next to be taken");
	store_pool_give(&pool, &a);
	store_pool_close(&pool);
	return tap_done();
}
