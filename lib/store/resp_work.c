/*
 * The threads that do the work of the Redis front where the store is one of files: a few, which take whatever
 * connection something has come from, as long as there is one, so that a busy server does not change threads with
 * every command.  Whoever has to wait for a client lets another thread take his place.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "store/resp_impl.h"
#include "store/store_impl.h"

enum { THREADS_MAX = 1024 };

struct resp_workers {
	pthread_mutex_t lock;
	pthread_cond_t spare;        /* of those that are not to work now */
	int epoll, bell;             /* bell: readable when all is to end */
	size_t limit, threads, parked;
	_Atomic size_t active;       /* that neither wait for a client nor are parked */
	_Atomic bool ending;
	struct resp_conn *unused;    /* never freed before the end: a late event may name any */
	pthread_t ids[THREADS_MAX];
};

/* ---- connections that come and go ---- */

struct resp_conn *resp_conn_take(struct resp_front *f, struct ds_err *err)
{
	struct resp_workers *w = f->workers;
	struct resp_conn *c = NULL;

	if (w) {
		pthread_mutex_lock(&w->lock);
		c = w->unused;
		if (c)
			w->unused = c->next;
		pthread_mutex_unlock(&w->lock);
	}
	if (!c) {
		c = mem_calloc(1, sizeof *c);
		if (!c) {
			err_nomem(err, sizeof *c, "a connection");
			return NULL;
		}
		pthread_cond_init(&c->told, NULL);
		c->state = RESP_SERVED;
	}
	c->front = f;
	return c;
}

/* Nothing of it is kept but what a late event looks at. */
void resp_conn_give(struct resp_conn *c)
{
	struct resp_workers *w = c->front->workers;

	if (!w) {
		pthread_cond_destroy(&c->told);
		free(c);
		return;
	}
	memset(&c->r, 0, sizeof c->r);
	c->ss = NULL;
	c->meta = NULL;
	c->parser = NULL;
	c->name[0] = 0;
	c->quit = c->within = c->over = c->by_workers = false;
	c->argc = c->args = c->argv_cap = 0;
	c->argv = NULL;
	c->command = NULL;
	c->refused = NULL;
	pthread_mutex_lock(&w->lock);
	c->next = w->unused;
	w->unused = c;
	pthread_mutex_unlock(&w->lock);
}

/* ---- working ---- */

static void over(struct resp_conn *c, int rc)
{
	struct resp_workers *w = c->front->workers;

	epoll_ctl(w->epoll, EPOLL_CTL_DEL, c->r.fd, NULL);
	c->r.stall = NULL;
	pthread_mutex_lock(&w->lock);
	c->rc = rc;
	c->over = true; /* its thread goes on from here: c is no longer ours */
	pthread_cond_signal(&c->told);
	pthread_mutex_unlock(&w->lock);
}

/* True: it is ours now.  Else whoever serves it is told that more has come. */
static bool take(struct resp_conn *c)
{
	int was = RESP_IDLE;

	while (!atomic_compare_exchange_weak(&c->state, &was, was == RESP_IDLE ? RESP_SERVED : RESP_AGAIN))
		;
	return was == RESP_IDLE;
}

static void serve(struct resp_conn *c, uint32_t events)
{
	int was, rc;
	bool more;

	if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) /* behind the last bytes: no other event tells of it */
		c->ending = true;
	if (!take(c))
		return;
	do {
		rc = resp_serve_some(c, &more, &c->err);
		if (rc || !more) {
			over(c, rc);
			return;
		}
		was = RESP_SERVED;
		if (atomic_compare_exchange_strong(&c->state, &was, RESP_IDLE))
			return;
		c->state = RESP_SERVED;
	} while (true);
}

static void stall(void *ctx, bool begin);

static void *work(void *arg)
{
	struct resp_workers *w = arg;
	struct epoll_event e;

	store_waits = (struct store_waits){ stall, w };

	pthread_mutex_lock(&w->lock);
	while (!w->ending) {
		if (w->active >= w->limit) {
			w->parked++;
			pthread_cond_wait(&w->spare, &w->lock);
			w->parked--;
			continue;
		}
		w->active++;
		pthread_mutex_unlock(&w->lock);
		while (!w->ending && w->active <= w->limit)
			if (epoll_wait(w->epoll, &e, 1, -1) == 1 && e.data.ptr)
				serve(e.data.ptr, e.events);
		pthread_mutex_lock(&w->lock);
		w->active--;
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* With the lock.  False: no thread. */
static bool add_thread(struct resp_workers *w)
{
	sigset_t all, old;
	bool made;

	if (w->threads == THREADS_MAX)
		return false;
	sigfillset(&all); /* signals are the program's */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	made = pthread_create(&w->ids[w->threads], NULL, work, w) == 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	w->threads += made;
	return made;
}

/* A worker has to wait, or is done with that. */
static void stall(void *ctx, bool begin)
{
	static _Thread_local unsigned depth; /* a wait within a wait */
	struct resp_workers *w = ctx;

	if (begin ? depth++ : --depth)
		return;
	pthread_mutex_lock(&w->lock);
	if (!begin) {
		w->active++;
	} else if (--w->active < w->limit) {
		if (w->parked)
			pthread_cond_signal(&w->spare);
		else
			add_thread(w);
	}
	pthread_mutex_unlock(&w->lock);
}

void resp_worker_again(struct resp_conn *c)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = c };

	epoll_ctl(c->front->workers->epoll, EPOLL_CTL_MOD, c->r.fd, &e);
}

int resp_by_workers(struct resp_conn *c, struct ds_err *err)
{
	struct resp_workers *w = c->front->workers;
	struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = c };
	int rc = 0;

	c->by_workers = true;
	c->r.stall = stall;
	c->r.stall_ctx = w;
	c->ending = false;
	c->state = RESP_IDLE;
	if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, c->r.fd, &e))
		return err_errno(err, DS_OS, "cannot wait for '%s'", c->peer);
	pthread_mutex_lock(&w->lock);
	while (!c->over)
		pthread_cond_wait(&c->told, &w->lock);
	rc = c->rc;
	pthread_mutex_unlock(&w->lock);
	if (rc)
		*err = c->err;
	return rc;
}

/* ---- beginning and end ---- */

int resp_workers_open(struct resp_front *f, struct ds_err *err)
{
	struct resp_workers *w = mem_calloc(1, sizeof *w);
	struct epoll_event e = { .events = EPOLLIN };
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	bool made = true;

	if (!w)
		return err_nomem(err, sizeof *w, "threads");
	w->limit = f->o.workers ? f->o.workers : cpus > 2 ? (size_t)cpus - 1 : 1;
	if (w->limit > THREADS_MAX)
		w->limit = THREADS_MAX;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->spare, NULL);
	w->epoll = epoll_create1(EPOLL_CLOEXEC);
	w->bell = eventfd(0, EFD_CLOEXEC);
	f->workers = w;
	if (w->epoll < 0 || w->bell < 0 || epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->bell, &e)) {
		err_errno(err, DS_OS, "cannot make an event loop");
		resp_workers_close(f);
		return err->code;
	}
	pthread_mutex_lock(&w->lock);
	while (made && w->threads < w->limit)
		made = add_thread(w);
	pthread_mutex_unlock(&w->lock);
	if (made)
		return 0;
	resp_workers_close(f);
	return err_set(err, DS_OS, "cannot make threads");
}

void resp_workers_close(struct resp_front *f)
{
	struct resp_workers *w = f->workers;

	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->ending = true;
	if (w->bell >= 0)
		eventfd_write(w->bell, 1);
	pthread_cond_broadcast(&w->spare);
	pthread_mutex_unlock(&w->lock);
	for (size_t i = 0; i < w->threads; i++)
		pthread_join(w->ids[i], NULL);
	for (struct resp_conn *c = w->unused, *next; c; c = next) {
		next = c->next;
		pthread_cond_destroy(&c->told);
		free(c);
	}
	if (w->epoll >= 0)
		close(w->epoll);
	if (w->bell >= 0)
		close(w->bell);
	pthread_cond_destroy(&w->spare);
	pthread_mutex_destroy(&w->lock);
	free(w);
	f->workers = NULL;
}
