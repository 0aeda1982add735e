package loyalty

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Earn books points for a card and returns how many. Timeout and number of attempts come from the configuration.
func (c *Client) Earn(ctx context.Context, card, order string, cents int64) (int, error) {
	var last error
	for attempt := 1; attempt <= c.cfg.Attempts; attempt++ {
		if attempt > 1 {
			time.Sleep(100 * time.Millisecond)
		}
		points, err := c.earnOnce(ctx, card, cents)
		if err == nil {
			return points, nil
		}
		last = err
		c.log.Warn("loyalty earn failed", "order", order, "attempt", attempt, "err", err)
	}
	return 0, last
}

func (c *Client) earnOnce(ctx context.Context, card string, cents int64) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	var reply struct{ Points int }
	err := c.post(ctx, "/v1/earn", map[string]any{
		"card":  card,
		"cents": cents,
		"ref":   uuid.NewString(), // loyalty books each ref once
	}, &reply)
	return reply.Points, err
}

// Sweep books the points of orders whose booking failed at the till. Switched off since 13 November, see CHG-2231.
func (w *Sweeper) Sweep(ctx context.Context) error {
	rows, err := w.store.Pending(ctx, 500)
	if err != nil {
		return err
	}
	for _, p := range rows {
		points, err := w.client.Earn(ctx, p.Card, p.Order, p.Cents)
		if err != nil {
			continue // tomorrow
		}
		if err := w.store.Done(ctx, p.Order, points); err != nil {
			return err
		}
	}
	return nil
}
