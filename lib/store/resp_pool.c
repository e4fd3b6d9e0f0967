#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "store/resp_impl.h"

enum { LEAST = 128 << 10, HUGE_FROM = 4 << 20, KEEP_EACH = 32 << 20, KEEP_ALL = 128 << 20, WAIT_S = 5 };

int resp_pool_open(struct resp_pool *p, uint64_t limit, struct ds_err *err)
{
	pthread_condattr_t attr;

	*p = (struct resp_pool){ .limit = limit };
	if (pthread_condattr_init(&attr))
		return err_nomem(err, sizeof attr, "memory for values");
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->given, &attr);
	pthread_condattr_destroy(&attr);
	return 0;
}

void resp_pool_close(struct resp_pool *p)
{
	for (size_t i = 0; i < p->n; i++)
		free(p->free[i].p);
	pthread_cond_destroy(&p->given);
	pthread_mutex_destroy(&p->lock);
}

static bool take_kept(struct resp_pool *p, size_t cap, struct resp_buffer *b)
{
	for (size_t i = p->n; i-- > 0;)
		if (p->free[i].cap == cap) {
			*b = p->free[i];
			for (p->n--; i < p->n; i++)
				p->free[i] = p->free[i + 1];
			p->kept -= cap;
			return true;
		}
	return false;
}

/* Buffers that are kept give way to one of another size. */
static bool make_room(struct resp_pool *p, size_t cap)
{
	while (p->n && p->taken + p->kept + cap > p->limit) {
		p->kept -= p->free[--p->n].cap;
		free(p->free[p->n].p);
	}
	return p->taken + cap <= p->limit;
}

bool resp_pool_take(struct resp_pool *p, size_t n, struct resp_buffer *b)
{
	struct timespec until;
	size_t cap = LEAST;
	bool have = false, late = false;

	*b = (struct resp_buffer){ NULL, 0 };
	if (n > p->limit || n > SIZE_MAX / 2)
		return false;
	while (cap < n)
		cap *= 2;
	if (cap > p->limit)
		cap = n;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += WAIT_S;
	pthread_mutex_lock(&p->lock);
	while (!(have = take_kept(p, cap, b)) && !make_room(p, cap) && !late)
		late = pthread_cond_timedwait(&p->given, &p->lock, &until) == ETIMEDOUT;
	if (have || !late)
		p->taken += cap;
	pthread_mutex_unlock(&p->lock);
	if (have || late)
		return have;
	*b = (struct resp_buffer){ aligned_alloc(64, round_up(cap, 64)), cap };
	if (!b->p)
		resp_pool_give(p, b);
	else if (cap >= HUGE_FROM)
		mem_huge(b->p, cap);
	return b->p != NULL;
}

void resp_pool_give(struct resp_pool *p, struct resp_buffer *b)
{
	if (!b->cap)
		return;
	pthread_mutex_lock(&p->lock);
	p->taken -= b->cap;
	if (b->p && b->cap <= KEEP_EACH && p->kept + b->cap <= KEEP_ALL && p->n < RESP_POOL_KEPT) {
		p->kept += b->cap;
		p->free[p->n++] = *b;
		b->p = NULL;
	}
	pthread_cond_signal(&p->given);
	pthread_mutex_unlock(&p->lock);
	free(b->p);
	*b = (struct resp_buffer){ NULL, 0 };
}
