#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/log.h"
#include "serve/ranked_impl.h"
#include "serve/unit_options.h"

#define BEHIND_NS ((int64_t)100000000) /* until a reader that has not taken the last frame is looked at again */

static bool wanted(const struct ranked *r)
{
	return r->o->loads || r->o->loads_to;
}

int loads_new(struct ranked *r, struct ds_err *err)
{
	struct epoll_event e = { .events = EPOLLIN };

	r->watch = r->timer = -1;
	if (!wanted(r))
		return 0;
	r->meta = meta_new();
	if (!r->meta)
		return err_nomem(err, 64, "frame meta");
	r->watch = epoll_create1(EPOLL_CLOEXEC);
	r->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (r->watch < 0 || r->timer < 0 || epoll_ctl(r->watch, EPOLL_CTL_ADD, r->timer, &e) ||
	    epoll_ctl(r->watch, EPOLL_CTL_ADD, ep_bell_fd(r->ep), &e))
		return err_errno(err, DS_OS, "cannot watch a timer");
	return 0;
}

struct opening { struct beside *b; const struct beside_options *to; const struct hello *hello; };

static int open_there(void *arg, struct ds_err *err)
{
	const struct opening *o = arg;

	return beside_open(o->b, o->to, o->hello, err);
}

int loads_open(struct work *w, const struct stage_config *stage, struct ds_err *err)
{
	const struct stage_options *io = &stage->opt;
	struct ranked *r = w->ranked;
	struct beside_options to = { .option = "--loads-to", .role = "load", .to = r->o->loads_to, .force = io->force,
		.stdout_taken = io->output ? strcmp(io->output, "-") == 0 : !io->listen,
		.patience_ns = io->peer_ns };
	struct opening o = { &r->to, &to, &stage->hello };
	int rc = to.to ? ranked_aside(w, open_there, &o, err) : 0;

	r->to_open = to.to && !rc;
	return rc;
}

/* ---- writing ---- */

static int put(void *ctx, struct frame_writer *w, struct ds_err *err)
{
	struct ranked *r = ctx;
	struct load_message m;

	ep_load(r->ep, &m);
	return load_write(w, r->meta, &m, err);
}

/* A reader that is behind does not hold up the unit: what it lacks it gets in one frame, later. */
static bool may_write(struct ranked *r)
{
	if (r->to_open) {
		if (!r->to.error.code && frame_writer_queued(r->to.w))
			beside_note(&r->to, frame_writer_flush(r->to.w, &r->to.error));
		return !r->to.error.code && !frame_writer_queued(r->to.w);
	}
	return r->src && !source_blocked(r->src);
}

static void write_load(struct ranked *r)
{
	if (!r->to_open) {
		stage_put(r->src, put, r);
		return;
	}
	beside_note(&r->to, put(r, r->to.w, &r->to.error));
	if (!r->to.error.code)
		beside_note(&r->to, frame_writer_flush(r->to.w, &r->to.error));
	if (r->to.error.code && !r->to_failed)
		log_msg(LOG_WARN, "%s; loads are written no more", r->to.error.text);
	r->to_failed = r->to.error.code != 0;
}

/* ---- when ---- */

static void arm(struct ranked *r, int64_t ns)
{
	struct itimerspec t = { .it_value = { ns / 1000000000, ns % 1000000000 } };

	timerfd_settime(r->timer, 0, &t, NULL);
	r->armed = ns > 0;
}

void loads_step(struct ranked *r, bool worked)
{
	int64_t pause = r->o->load_interval_ns > 0 ? r->o->load_interval_ns : 1;
	uint64_t times;

	if (!wanted(r))
		return;
	if (r->armed && read(r->timer, &times, sizeof(times)) == (ssize_t)sizeof(times)) {
		r->armed = false;
		if (may_write(r)) {
			write_load(r);
		} else if (r->to_open ? !r->to.error.code : r->src != NULL) {
			worked = true; /* it is still to be written; who is behind is not asked all the time */
			pause = pause > BEHIND_NS ? pause : BEHIND_NS;
		}
	}
	if (worked && !r->armed)
		arm(r, pause);
}

void loads_last(struct ranked *r)
{
	if (wanted(r) && may_write(r))
		write_load(r);
	r->src = NULL;
}

int loads_close(struct ranked *r, struct ds_err *err)
{
	int rc = r->to_open ? beside_close(&r->to, err) : 0;

	r->to_open = false;
	return rc;
}

void loads_free(struct ranked *r)
{
	if (r->to_open)
		beside_drop(&r->to);
	if (r->meta)
		meta_free(r->meta);
	if (r->watch >= 0)
		close(r->watch);
	if (r->timer >= 0)
		close(r->timer);
}
