"""A question goes in, passages come out."""
