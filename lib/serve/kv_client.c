#include "serve/kv_client_impl.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"

#define PAUSE_LEAST_NS ((int64_t)500000000) /* until a store that failed is tried again, */
#define PAUSE_MOST_NS ((int64_t)30000000000) /* and again, twice as long each time */
#define COMING_NS ((int64_t)20000000)        /* between attempts to reach one that may be starting */

enum { LATE_MOST = 3 };

/* ---- whether the store is well ---- */

int64_t kv_longer(int64_t pause)
{
	return pause < PAUSE_LEAST_NS ? PAUSE_LEAST_NS : 2 * pause < PAUSE_MOST_NS ? 2 * pause : PAUSE_MOST_NS;
}

void kv_failed(struct kv_client *c, const struct ds_err *why, const struct store_key *got)
{
	int64_t now = time_mono_ns();
	bool news, ending, again;

	pthread_mutex_lock(&c->lock);
	news = !c->lost;
	again = c->lost || (c->back_ns && now - c->back_ns < PAUSE_MOST_NS);
	ending = c->stop || (c->flushing && now >= c->flush_until); /* it had no time */
	c->pause_ns = again ? kv_longer(c->pause_ns) : PAUSE_LEAST_NS;
	c->retry_ns = time_mono_ns() + c->pause_ns;
	c->lost = true;
	if (got) {
		c->get_failed = true;
		c->get_key = *got;
	}
	if (why->code != DS_UNAVAILABLE && c->unmet) { /* it is there, and silent */
		c->unmet = false;
		pthread_cond_signal(&c->writes_wake);
	}
	c->n.losses += news && !ending;
	pthread_cond_signal(&c->asks_wake); /* who tries again */
	pthread_mutex_unlock(&c->lock);
	if (news && !ending)
		log_msg(LOG_WARN, "--kv '%s' is lost: %s; prompts are computed without it", c->o.addr, why->text);
}

void kv_well(struct kv_client *c)
{
	bool news;

	pthread_mutex_lock(&c->lock);
	news = c->lost;
	c->lost = c->unmet = c->get_failed = false;
	if (news)
		c->back_ns = time_mono_ns();
	pthread_cond_signal(&c->writes_wake); /* what was kept for it */
	pthread_mutex_unlock(&c->lock);
	if (news)
		log_msg(LOG_WARN, "--kv '%s' is back", c->o.addr);
}

void kv_met(struct kv_client *c)
{
	bool first;

	pthread_mutex_lock(&c->lock);
	first = c->unmet;
	pthread_mutex_unlock(&c->lock);
	if (first)
		kv_well(c);
}

bool kv_may_come(struct kv_client *c, int rc)
{
	int64_t now = time_mono_ns();
	bool yes;

	pthread_mutex_lock(&c->lock);
	if (!c->meet_by_ns)
		c->meet_by_ns = now + c->o.timeout_ns;
	yes = rc == DS_UNAVAILABLE && c->unmet && !c->lost && !c->stop && now + COMING_NS < c->meet_by_ns &&
		!(c->flushing && now + COMING_NS >= c->flush_until);
	pthread_mutex_unlock(&c->lock);
	if (yes)
		nanosleep(&(struct timespec){ .tv_nsec = COMING_NS }, NULL);
	return yes;
}

void kv_timed(struct kv_client *c, struct kv_ask *a, bool late)
{
	bool was, is;

	pthread_mutex_lock(&c->lock);
	was = is = c->slow;
	if (a->timed)
		goto out;
	a->timed = true;
	if (a->trial)
		c->trying = false;
	if (late && (a->trial || (!c->slow && ++c->late_row >= LATE_MOST))) {
		c->slow_pause_ns = c->slow ? kv_longer(c->slow_pause_ns) : PAUSE_LEAST_NS;
		c->slow_until_ns = time_mono_ns() + c->slow_pause_ns;
		c->slow = true;
	} else if (!late && a->state == KV_ASK_OVER && a->arrived > a->first && a->arrived == a->found) {
		c->late_row = 0;
		c->slow &= !a->trial;
	}
	is = c->slow;
out:
	pthread_mutex_unlock(&c->lock);
	if (is && !was)
		log_msg(LOG_WARN, "--kv '%s' is slow: %d prompts in a row waited for --kv-timeout; it is left "
			"alone for a while",
			c->o.addr, LATE_MOST);
	else if (was && !is)
		log_msg(LOG_WARN, "--kv '%s' is no longer slow", c->o.addr);
}

/* ---- the threads' sessions ---- */

/* Until when its calls may wait, 0: as they like. */
static int64_t last_call(const struct kv_client *c, struct store_session *const *ss)
{
	return c->stop || (c->flushing && ss == &c->asks_by) ? 1 : c->flushing ? c->flush_until : 0;
}

struct store_session *kv_session(struct kv_client *c, struct store_session **ss)
{
	struct store_session *made = NULL;
	struct ds_err err;

	if (*ss)
		return *ss;
	if (store_begin(&made, c->store, &err)) {
		kv_failed(c, &err, NULL);
		return NULL;
	}
	pthread_mutex_lock(&c->lock);
	*ss = made;
	if (last_call(c, ss))
		store_hurry(made, last_call(c, ss));
	pthread_mutex_unlock(&c->lock);
	return made;
}

void kv_session_end(struct kv_client *c, struct store_session **ss)
{
	struct store_session *was = *ss;

	pthread_mutex_lock(&c->lock);
	*ss = NULL;
	pthread_mutex_unlock(&c->lock);
	if (was)
		store_end(was);
}

/* With the lock held. */
static void hurry(struct kv_client *c)
{
	if (c->asks_by)
		store_hurry(c->asks_by, last_call(c, &c->asks_by));
	if (c->writes_by)
		store_hurry(c->writes_by, last_call(c, &c->writes_by));
}

/* ---- the bell ---- */

void kv_ring(struct kv_client *c)
{
	while (write(c->bell, &(uint64_t){ 1 }, sizeof(uint64_t)) < 0 && errno == EINTR)
		;
}

int kv_client_bell(const struct kv_client *c) { return c->epoll; }

int kv_client_watch(struct kv_client *c, int fd, struct ds_err *err)
{
	struct epoll_event e = { .events = EPOLLIN };

	return epoll_ctl(c->epoll, EPOLL_CTL_ADD, fd, &e) ? err_errno(err, DS_OS, "cannot watch a descriptor") : 0;
}

static int make_bell(struct kv_client *c, struct ds_err *err)
{
	int rc;

	c->epoll = epoll_create1(EPOLL_CLOEXEC);
	c->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (c->epoll < 0 || c->bell < 0 || c->timer < 0)
		return err_errno(err, DS_OS, "cannot make a descriptor");
	rc = kv_client_watch(c, c->bell, err);
	return rc ? rc : kv_client_watch(c, c->timer, err);
}

void kv_client_due(struct kv_client *c, int64_t ns)
{
	struct itimerspec t = { .it_value = { ns / 1000000000, ns % 1000000000 } };

	if (c->due && c->due <= ns)
		return;
	c->due = ns;
	timerfd_settime(c->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

void kv_client_rung(struct kv_client *c)
{
	uint64_t n;
	ssize_t r = read(c->bell, &n, sizeof(n));

	if (read(c->timer, &n, sizeof(n)) == (ssize_t)sizeof(n))
		c->due = 0;
	(void)r; /* it may not have rung */
	kv_reap(c);
}

/* ---- from beginning to end ---- */

static int start(struct kv_client *c, struct ds_err *err)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all); /* signals are for the program's own thread */
	pthread_sigmask(SIG_BLOCK, &all, &before);
	rc = pthread_create(&c->asker, NULL, kv_asker, c);
	if (!rc && (rc = pthread_create(&c->writer, NULL, kv_writer, c))) {
		pthread_mutex_lock(&c->lock);
		c->stop = true;
		pthread_cond_broadcast(&c->asks_wake);
		pthread_mutex_unlock(&c->lock);
		pthread_join(c->asker, NULL);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = rc;
	c->threads = !rc;
	return rc ? err_errno(err, DS_OS, "cannot make a thread") : 0;
}

static void make_locks(struct kv_client *c)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->asks_wake, &attr);
	pthread_cond_init(&c->writes_wake, &attr);
	pthread_cond_init(&c->written, &attr);
	pthread_condattr_destroy(&attr);
}

int kv_client_open(struct kv_client **out, const struct kv_client_options *o, struct ds_err *err)
{
	struct kv_client *c = mem_calloc(1, sizeof(*c));
	int rc = 0;

	if (!c)
		return err_nomem(err, sizeof(*c), "--kv");
	c->o = *o;
	c->epoll = c->bell = c->timer = -1;
	c->unmet = true;
	c->root = block_root(&o->layout);
	c->pages = (size_t)o->layout.tokens / KV_BLOCK;
	TAILQ_INIT(&c->asks);
	TAILQ_INIT(&c->given_up);
	STAILQ_INIT(&c->writes);
	make_locks(c);
	if (!block_sizes(&o->layout, &c->block_bytes, &c->stored_bytes))
		rc = err_set(err, DS_CONFIG, "--kv-block: %llu tokens are too many for this model",
			(unsigned long long)o->layout.tokens);
	if (!rc && !(c->pages == 1 && o->layout.form == BLOCK_EXACT)) {
		c->bounce = mem_array(c->stored_bytes, 1);
		c->bounce2 = mem_array(c->block_bytes, 1);
		if (!c->bounce || !c->bounce2)
			rc = err_nomem(err, c->block_bytes, "--kv");
	}
	if (!rc)
		rc = make_bell(c, err);
	if (!rc)
		rc = store_open(&c->store, o->addr, &(struct store_options){ .password = o->password }, err);
	if (rc)
		err_prefix(err, "--kv");
	if (!rc)
		rc = start(c, err);
	if (rc) {
		kv_client_close(c);
		return rc;
	}
	*out = c;
	return 0;
}

void kv_client_flush(struct kv_client *c, int64_t until)
{
	struct timespec t = { until / 1000000000, until % 1000000000 };

	pthread_mutex_lock(&c->lock);
	c->flushing = true;
	c->flush_until = until;
	hurry(c);
	pthread_cond_signal(&c->writes_wake); /* a store that was not there yet may be now */
	while (c->writing && (!c->lost || c->unmet))
		if (pthread_cond_timedwait(&c->written, &c->lock, &t) == ETIMEDOUT)
			break;
	pthread_mutex_unlock(&c->lock);
}

void kv_client_close(struct kv_client *c)
{
	struct kv_write *w;

	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	c->stop = true;
	hurry(c);
	pthread_cond_broadcast(&c->asks_wake);
	pthread_cond_broadcast(&c->writes_wake);
	pthread_mutex_unlock(&c->lock);
	if (c->threads) {
		pthread_join(c->asker, NULL);
		pthread_join(c->writer, NULL);
	}
	kv_reap(c);
	while ((w = STAILQ_FIRST(&c->writes)) != NULL) {
		STAILQ_REMOVE_HEAD(&c->writes, link);
		kv_write_free(w);
	}
	if (c->store)
		store_close(c->store);
	if (c->epoll >= 0)
		close(c->epoll);
	if (c->bell >= 0)
		close(c->bell);
	if (c->timer >= 0)
		close(c->timer);
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->asks_wake);
	pthread_cond_destroy(&c->writes_wake);
	pthread_cond_destroy(&c->written);
	free(c->bounce);
	free(c->bounce2);
	free(c);
}

bool kv_client_holds(const struct kv_client *c) { return !TAILQ_EMPTY(&c->given_up); }

size_t kv_client_pages(const struct kv_client *c) { return c->pages; }

/* ---- what it did ---- */

void kv_client_state(struct kv_client *c, struct jw *out)
{
	pthread_mutex_lock(&c->lock);
	jw_key(out, "kv_store");
	jw_obj(out);
	jw_key(out, "lost");
	jw_bool(out, c->lost);
	jw_key(out, "slow");
	jw_bool(out, c->slow);
	jw_put_uint(out, "asks", c->n.asks);
	jw_put_uint(out, "found_blocks", c->n.found);
	jw_put_uint(out, "fetched_blocks", c->n.fetched);
	jw_put_uint(out, "wrong_blocks", c->n.wrong);
	jw_put_uint(out, "missing_blocks", c->n.missing);
	jw_put_uint(out, "late", c->n.late);
	jw_put_uint(out, "written_blocks", c->n.written);
	jw_put_uint(out, "already_blocks", c->n.already);
	jw_put_uint(out, "dropped_blocks", c->n.dropped);
	jw_put_uint(out, "writing_blocks", c->writing);
	jw_put_uint(out, "losses", c->n.losses);
	jw_obj_end(out);
	pthread_mutex_unlock(&c->lock);
}

void kv_client_report(struct kv_client *c, struct buf *out)
{
	pthread_mutex_lock(&c->lock);
	buf_printf(out, "kv store: %llu prompts looked up; %llu blocks found, %llu fetched, %llu wrong, %llu "
		"missing; %llu written, %llu there already, %llu not written; %llu too late, lost %llu times\n",
		(unsigned long long)c->n.asks, (unsigned long long)c->n.found, (unsigned long long)c->n.fetched,
		(unsigned long long)c->n.wrong, (unsigned long long)c->n.missing, (unsigned long long)c->n.written,
		(unsigned long long)c->n.already, (unsigned long long)c->n.dropped, (unsigned long long)c->n.late,
		(unsigned long long)c->n.losses);
	pthread_mutex_unlock(&c->lock);
}
