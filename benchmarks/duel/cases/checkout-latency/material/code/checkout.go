package checkout

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

func Open(cfg Config) (*sql.DB, error) {
	db, err := sql.Open("pgx", cfg.DatabaseURL)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(cfg.PoolSize) // CHECKOUT_POOL_SIZE, for each pod
	db.SetMaxIdleConns(cfg.PoolSize)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db, nil
}

// Place books an order and opens its payment. The gateway gives us 15 s.
func (s *Service) Place(ctx context.Context, cart Cart) (Payment, error) {
	priced, err := s.prices.Apply(ctx, cart) // from memory, no I/O; since 2.41 with the VAT rule of each line
	if err != nil {
		return Payment{}, err
	}
	order, err := s.save(ctx, priced)
	if err != nil {
		return Payment{}, err // answered with 503
	}
	return s.payments.Open(ctx, order) // pay_ms in the log
}

// save writes the order and everything that must be true together with it.
func (s *Service) save(ctx context.Context, cart PricedCart) (Order, error) {
	acquire, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := s.db.Conn(acquire)
	if err != nil {
		return Order{}, fmt.Errorf("acquire: %w", err)
	}
	defer conn.Close()

	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return Order{}, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback()

	order, err := insertOrder(ctx, tx, cart)
	if err != nil {
		return Order{}, err
	}
	if err := reserveStock(ctx, tx, order); err != nil {
		return Order{}, err
	}
	if cart.Card != "" {
		points, err := s.loyalty.Earn(ctx, cart.Card, order.ID, order.Cents)
		if err != nil {
			// Never lose a sale because of points: the sweeper books them later.
			err = insertPointsPending(ctx, tx, order)
		} else {
			err = setPoints(ctx, tx, order, points)
		}
		if err != nil {
			return Order{}, err
		}
	}
	return order, tx.Commit() // db_ms in the log: the sum of all statements up to here
}
